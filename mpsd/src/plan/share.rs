//! Limits made concrete: `auto`, shares and replicas become per cents and MiB of the job's own GPUs.

use mpsd_core::limits::{Amount, Percent, Priority};
use mpsd_core::record::Daemon;
use mpsd_core::request::{GpuSelector, MemoryLimit, Request, Threads};
use mpsd_core::{Gpu, GpuUuid, Refusal};
use std::path::PathBuf;

/// The limits of one job on its GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    threads: Option<Percent>,
    memory: Vec<(GpuUuid, u64)>,
    priority: Option<Priority>,
    /// Thread percentage by local rank; empty where all have the daemon's.
    pub rank_threads: Vec<Percent>,
    /// Memory by local rank; empty where all have the daemon's.
    pub rank_memory: Vec<Vec<(GpuUuid, u64)>>,
}

impl Share {
    /// The limits that `request` means on `gpus`, with `tasks` tasks on each, where that is known.
    ///
    /// # Errors
    /// A refusal: `auto` without a known number of tasks, more memory than a GPU has, a GPU that is not the job's.
    pub fn of(request: &Request, gpus: &[&Gpu], tasks: Option<u32>) -> Result<Self, Refusal> {
        let (threads, rank_threads) = threads(request, tasks)?;
        let (memory, rank_memory) = memory(request, gpus, tasks)?;
        Ok(Self {
            threads,
            memory,
            priority: request.priority,
            rank_threads,
            rank_memory,
        })
    }

    /// The daemon of `gpus` with these directories.
    pub fn daemon(&self, gpus: &[&Gpu], pipe: PathBuf, log: PathBuf) -> Daemon {
        Daemon {
            gpus: gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
            pipe,
            log,
            threads: self.threads,
            memory: self
                .memory
                .iter()
                .filter(|(uuid, _)| gpus.iter().any(|g| g.uuid == *uuid))
                .cloned()
                .collect(),
            priority: self.priority,
        }
    }
}

fn known(tasks: Option<u32>, what: &str) -> Result<u32, Refusal> {
    tasks.ok_or_else(|| {
        let why = "the scheduler does not say how many tasks the job has on a GPU";
        Refusal::new(
            format!("{what}=auto"),
            why,
            "MPS_REPLICAS=N with the number of tasks on a GPU, or a fixed value",
        )
    })
}

/// A client can only lower the daemon's percentage (docs/facts/mps-control.md#clients): the daemon gets the largest of
/// a list.
fn threads(request: &Request, tasks: Option<u32>) -> Result<(Option<Percent>, Vec<Percent>), Refusal> {
    if let Some(replicas) = request.replicas {
        return Ok((Some(Percent::part_of(replicas)), Vec::new()));
    }
    Ok(match &request.threads {
        None => (None, Vec::new()),
        Some(Threads::Auto) => (Some(Percent::auto(known(tasks, "MPS_THREADS")?)), Vec::new()),
        Some(Threads::Uniform(percent)) => (Some(*percent), Vec::new()),
        Some(Threads::PerRank(list)) => (list.iter().max().copied(), list.clone()),
    })
}

type Memory = (Vec<(GpuUuid, u64)>, Vec<Vec<(GpuUuid, u64)>>);

fn memory(request: &Request, gpus: &[&Gpu], tasks: Option<u32>) -> Result<Memory, Refusal> {
    let even = |parts: u32| {
        gpus.iter()
            .map(move |g| (g.uuid.clone(), (g.memory_mib / u64::from(parts.max(1))).max(1)))
    };
    if let Some(replicas) = request.replicas {
        return Ok((even(replicas).collect(), Vec::new()));
    }
    match &request.memory {
        None => Ok((Vec::new(), Vec::new())),
        Some(MemoryLimit::Auto) => Ok((even(known(tasks, "MPS_MEM")?).collect(), Vec::new())),
        Some(MemoryLimit::Uniform(amount)) => Ok((on_each(*amount, gpus)?, Vec::new())),
        Some(MemoryLimit::PerGpu(list)) => Ok((by_gpu(list, gpus)?, Vec::new())),
        Some(MemoryLimit::PerRank(list)) => {
            let ranks = list
                .iter()
                .map(|a| on_each(*a, gpus))
                .collect::<Result<Vec<_>, _>>()?;
            // As with threads, the daemon holds the largest and each rank lowers its own.
            let most = gpus.iter().enumerate().map(|(n, gpu)| {
                (
                    gpu.uuid.clone(),
                    ranks.iter().map(|rank| rank[n].1).max().unwrap_or(gpu.memory_mib),
                )
            });
            Ok((most.collect(), ranks))
        }
    }
}

fn on_each(amount: Amount, gpus: &[&Gpu]) -> Result<Vec<(GpuUuid, u64)>, Refusal> {
    gpus.iter()
        .map(|gpu| Ok((gpu.uuid.clone(), on(amount, gpu)?)))
        .collect()
}

fn on(amount: Amount, gpu: &Gpu) -> Result<u64, Refusal> {
    let mib = amount.mebibytes_of(gpu.memory_mib);
    if mib > gpu.memory_mib {
        let what = format!("memory limit {amount}");
        let why = format!("GPU {} '{}' has {}M", gpu.index, gpu.name, gpu.memory_mib);
        return Err(Refusal::new(
            what,
            why,
            format!("at most {}M, or a share such as 25%", gpu.memory_mib),
        ));
    }
    Ok(mib)
}

fn by_gpu(list: &[(GpuSelector, Amount)], gpus: &[&Gpu]) -> Result<Vec<(GpuUuid, u64)>, Refusal> {
    list.iter()
        .map(|(selector, amount)| {
            // Indexes count within the job: 0 is its first GPU on this node.
            let gpu = match selector {
                GpuSelector::Index(n) => gpus.get(*n as usize),
                GpuSelector::Uuid(uuid) => gpus.iter().find(|g| g.uuid == *uuid),
            };
            let gpu = gpu.ok_or_else(|| {
                let what = format!("memory limit for GPU {selector}");
                let why = format!("the job has {} GPUs on this node", gpus.len());
                Refusal::new(
                    what,
                    why,
                    format!("0 to {}, or a UUID of the job's", gpus.len().saturating_sub(1)),
                )
            })?;
            Ok((gpu.uuid.clone(), on(*amount, gpu)?))
        })
        .collect()
}
