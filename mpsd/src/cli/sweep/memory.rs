//! Memory of the clients, from NVML, which tells it to an ordinary user.

use crate::node::worker::{NvmlWorker, Question};
use mpsd_core::gpu::GpuProcess;
use mpsd_core::{GpuUuid, Inventory};
use std::path::Path;
use std::time::Duration;

/// Longest wait for an answer; who gives none is not asked again.
const PATIENCE: Duration = Duration::from_secs(5);
/// MiB in bytes.
const MIB: u64 = 1 << 20;

/// NVML, and what the job's GPUs have.
#[derive(Debug)]
pub struct Memory {
    worker: NvmlWorker,
    gpus: Vec<GpuUuid>,
    /// Of the smallest GPU, MiB; none where NVML does not tell it of each.
    pub total_mib: Option<u64>,
}

impl Memory {
    /// None where NVML does not answer, or a GPU is not known by its UUID: then nothing is said of memory.
    pub fn of(gpus: &[String], worker: &Path, nvml: &str) -> Option<Self> {
        let mut worker = NvmlWorker::start(worker, nvml, PATIENCE).ok()?;
        let gpus: Vec<GpuUuid> = gpus
            .iter()
            .map(|gpu| GpuUuid::parse(gpu).ok())
            .collect::<Option<_>>()?;
        let inventory: Inventory = worker.ask(&Question::Inventory).ok()?;
        let totals = gpus.iter().map(|gpu| Some(inventory.by_uuid(gpu)?.memory_mib));
        // None is less than any number.
        let total_mib = totals.collect::<Option<Vec<_>>>()?.into_iter().min()?;
        Some(Self {
            worker,
            gpus,
            total_mib,
        })
    }

    /// What these processes hold together on the job's GPUs, MiB; None where NVML knows none of them.
    pub fn of_processes(&mut self, pids: &[i32]) -> Option<u64> {
        let mut bytes = None;
        for gpu in &self.gpus {
            let listed: Vec<GpuProcess> = self.worker.ask(&Question::Processes(gpu.clone())).ok()?;
            for process in listed.iter().filter(|process| pids.contains(&process.pid)) {
                bytes = Some(bytes.unwrap_or(0) + process.memory?);
            }
        }
        bytes.map(|bytes| bytes / MIB)
    }
}
