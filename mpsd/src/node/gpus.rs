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

    /// Lets the worker end while other things are done; it is waited for when this node is dropped. It stays until the
    /// servers are ready: a GPU that nobody holds open is shut down by a driver without persistence mode.
    pub(super) fn dismiss_worker(&mut self) {
        if let Some(mut worker) = self.worker.take() {
            worker.dismiss();
            self.leaving = Some(worker);
        }
    }
}

impl Gpus for RealNode {
    fn use_nvml(&mut self, library: &str) {
        if self.nvml != library {
            library.clone_into(&mut self.nvml);
            self.worker = None;
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
