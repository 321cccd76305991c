//! The node's GPUs: root asks NVML through a process of its own.

use super::members::uid_of;
use super::real::{RealNode, beside};
use super::worker::{NvmlWorker, Question};
use crate::job::journal::ProcessRef;
use crate::job::node::Gpus;
use mpsd_core::failure::Undetermined;
use mpsd_core::gpu::GpuProcess;
use mpsd_core::{ComputeMode, Failure, GpuUuid, Inventory};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Longest that is waited for a worker which only may be of use soon: what comes first must not wait for it.
const PREPARATION: Duration = Duration::from_millis(100);

impl RealNode {
    /// Asks the worker, which is started at the first question; after a failure the next question starts a new one.
    fn ask<T: DeserializeOwned>(&mut self, question: &Question) -> Result<T, Failure> {
        let mut worker = match self.worker.take() {
            Some(worker) => worker,
            None => NvmlWorker::start(&beside("mpsd")?, &self.nvml, self.nvml_time)?,
        };
        let answer = worker.ask(question);
        match &answer {
            Ok(_) => self.worker = Some(worker),
            Err(_) => self.silent = worker.silent().or(self.silent),
        }
        answer
    }
}

impl Gpus for RealNode {
    fn use_nvml(&mut self, library: &str) {
        if self.nvml != library {
            library.clone_into(&mut self.nvml);
            self.worker = None;
        }
    }

    fn prepare_nvml(&mut self, gpus: &[GpuUuid]) {
        if self.worker.is_none() {
            let program = beside("mpsd").ok();
            let started = program.map(|mpsd| NvmlWorker::start(&mpsd, &self.nvml, PREPARATION));
            self.worker = started
                .and_then(Result::ok)
                .map(|worker| worker.within(self.nvml_time));
            if let Some(worker) = &mut self.worker {
                worker.attach(gpus);
            }
        }
    }

    /// The worker is waited for when this node is dropped. At a begin it stays until the servers are ready: a GPU that nobody
    /// holds open is shut down by a driver without persistence mode.
    fn dismiss_nvml(&mut self) {
        if let Some(mut worker) = self.worker.take() {
            worker.dismiss();
            self.leaving = Some(worker);
        }
    }

    fn inventory(&mut self) -> Result<Inventory, Failure> {
        self.ask(&Question::Inventory)
    }

    fn compute_mode(&mut self, gpu: &GpuUuid) -> Result<ComputeMode, Failure> {
        self.ask(&Question::Mode(gpu.clone()))
    }

    fn set_compute_mode(&mut self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), Failure> {
        self.ask::<()>(&Question::SetMode(gpu.clone(), mode))?;
        let now = self.compute_mode(gpu)?;
        if now == mode {
            return Ok(());
        }
        let why = format!("set to {mode}, and it is {now}");
        Err(Undetermined::new(format!("compute mode of {gpu}"), why).into())
    }

    fn silent_nvml(&mut self) -> Option<ProcessRef> {
        self.silent.take()
    }

    fn gpu_processes(&mut self, gpu: &GpuUuid) -> Result<Vec<GpuProcess>, Failure> {
        let mut processes: Vec<GpuProcess> = self.ask(&Question::Processes(gpu.clone()))?;
        // NVML goes on listing processes that are gone, or that live in another namespace
        // (docs/facts/mps-control.md#nvml).
        processes.retain(|process| uid_of(process.pid).is_some());
        Ok(processes)
    }
}
