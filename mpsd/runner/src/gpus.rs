//! The job's GPUs as NVML tells an ordinary user of them: memory of processes, and power.

use mpsd::node::worker::{NvmlWorker, Question};
use mpsd_core::gpu::GpuProcess;
use mpsd_core::{GpuUuid, Inventory};
use std::path::Path;
use std::time::Duration;

#[derive(Debug)]
pub struct Gpus {
    /// `None`: it failed to answer once, and is not asked again.
    worker: Option<NvmlWorker>,
    gpus: Vec<GpuUuid>,
    /// Memory of the smallest GPU, MiB; `None`: NVML does not tell it for each.
    pub total_mib: Option<u64>,
}

impl Gpus {
    /// `None`: NVML does not answer, or a GPU has no UUID.
    pub fn of(gpus: &[String], daemon: &Path, nvml: &str) -> Option<Self> {
        let mut worker = NvmlWorker::start(daemon, nvml, Duration::from_secs(5)).ok()?;
        let gpus = gpus.iter().map(|gpu| GpuUuid::parse(gpu).ok());
        let gpus: Vec<GpuUuid> = gpus.collect::<Option<_>>()?;
        let inventory: Inventory = worker.ask(&Question::Inventory).ok()?;
        let total = |gpu: &GpuUuid| Some(inventory.by_uuid(gpu)?.memory_mib);
        let totals = gpus.iter().map(total);
        // `None` is less than any number.
        let total_mib = totals.collect::<Option<Vec<_>>>()?.into_iter().min()?;
        Some(Self {
            worker: Some(worker),
            gpus,
            total_mib,
        })
    }

    pub fn processes(&mut self) -> Option<Vec<Vec<GpuProcess>>> {
        self.of_each(Question::Processes)
    }

    /// What all of them draw, watts.
    pub fn watts(&mut self) -> Option<f64> {
        let each: Vec<u32> = self.of_each(Question::Power)?;
        Some(each.into_iter().map(f64::from).sum::<f64>() / 1000.0)
    }

    /// The memory of these processes on all GPUs, MiB; `None`: NVML lists none of them.
    pub fn memory_mib(&mut self, pids: &[i32]) -> Option<u64> {
        let lists = self.processes()?;
        memory_mib(lists.iter().flatten(), pids)
    }

    fn of_each<T: serde::de::DeserializeOwned>(
        &mut self,
        question: fn(GpuUuid) -> Question,
    ) -> Option<Vec<T>> {
        let worker = self.worker.as_mut()?;
        let answers = self.gpus.iter();
        let answers = answers.map(|gpu| worker.ask(&question(gpu.clone())).ok());
        let answers: Option<Vec<T>> = answers.collect();
        if answers.is_none() {
            self.worker = None;
        }
        answers
    }
}

/// The memory of `pids` in NVML's list, MiB; `None`: it lists none of them, or not their memory.
pub fn memory_mib<'a>(list: impl IntoIterator<Item = &'a GpuProcess>, pids: &[i32]) -> Option<u64> {
    let own = list.into_iter().filter(|p| pids.contains(&p.pid));
    let bytes: Vec<u64> = own.map(|process| process.memory).collect::<Option<_>>()?;
    (!bytes.is_empty()).then(|| bytes.iter().sum::<u64>() >> 20)
}
