//! Limits made concrete: `auto`, shares and replicas become per cents and MiB of the job's own GPUs, under the site's ceilings.

use mpsd_core::config::Ceilings;
use mpsd_core::limits::{Amount, Percent, Priority};
use mpsd_core::record::{ClientLimits, Daemon};
use mpsd_core::request::{GpuSelector, Key, MemoryLimit, Request, Threads, Wording};
use mpsd_core::text::one_line;
use mpsd_core::{Gpu, GpuUuid, Refusal};
use std::path::PathBuf;

/// Longest word of the user's that a refusal repeats. Characters.
const SHOWN: usize = 60;

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
    /// By how many each GPU's memory is divided at least: by more than its tasks where a ceiling is lower than their share.
    pub fn divides_memory_by(&self, gpus: &[&Gpu]) -> Option<u32> {
        let whole = |uuid: &GpuUuid| gpus.iter().find(|gpu| gpu.uuid == *uuid)?.memory_mib;
        let parts = self
            .memory
            .iter()
            .filter_map(|(uuid, mib)| whole(uuid)?.checked_div(*mib));
        u32::try_from(parts.min()?).ok()
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
            partitions: Vec::new(),
        }
    }
}

/// What a job's limits are made from.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// What the user wrote.
    pub asked: &'a Request,
    /// How he wrote it.
    pub wording: Wording,
    /// The same with the site's defaults.
    pub request: &'a Request,
    /// What nobody may exceed.
    pub ceilings: &'a Ceilings,
    /// The job's GPUs.
    pub gpus: &'a [&'a Gpu],
    /// How many of its tasks can meet on one of them, where that is known.
    pub tasks: Option<u32>,
}

type Memory = (Vec<(GpuUuid, u64)>, Vec<Vec<(GpuUuid, u64)>>);

impl Wanted<'_> {
    /// The limits. What the user wrote as a number and exceeds a ceiling is refused; what he did not (nothing, `auto`, the
    /// site's own default) is lowered to it.
    ///
    /// # Errors
    /// A refusal: a number above a ceiling, `auto` without a known number of tasks, more memory than a GPU has, a GPU that
    /// is not the job's.
    pub fn share(&self) -> Result<Share, Refusal> {
        let (threads, rank_threads) = self.threads()?;
        let (memory, rank_memory) = self.memory()?;
        Ok(Share {
            threads,
            memory,
            priority: self.request.priority,
            rank_threads,
            rank_memory,
        })
    }

    /// The most that the site, and each GPU, let a client have.
    pub fn most(&self) -> ClientLimits {
        let of_gpu = |gpu: &&Gpu| {
            let ceiling = self.ceilings.memory;
            let ceiling = ceiling.map(|most| most.mebibytes_of(gpu.memory_mib).unwrap_or(0));
            let most = ceiling.into_iter().chain(gpu.memory_mib).min();
            (gpu.uuid.clone(), most.unwrap_or(u64::MAX))
        };
        ClientLimits {
            threads: Some(self.ceilings.threads.unwrap_or(Percent::WHOLE)),
            memory: self.gpus.iter().map(of_gpu).collect(),
        }
    }

    fn tasks(&self, what: &str) -> Result<u32, Refusal> {
        self.tasks.ok_or_else(|| {
            let why = "the scheduler does not say how many tasks the job has on a GPU";
            Refusal::new(
                format!("{what}=auto"),
                why,
                "MPS_REPLICAS=N with the number of tasks on a GPU, or a fixed value",
            )
        })
    }

    /// The user's word of `key`, which stands for more than the site allows.
    fn above(&self, key: Key, what: &str, ceiling: impl ToString, allowed: String) -> Refusal {
        let word = self.wording.token(key, self.asked.value(key).as_deref());
        let ceiling = ceiling.to_string();
        let why = format!("the {what} is above this site's ceiling of {ceiling}");
        Refusal::new(one_line(&word, SHOWN), why, allowed)
    }

    /// A client can only lower the daemon's percentage (docs/facts/mps-control.md#clients): the daemon gets the largest of
    /// a list.
    fn threads(&self) -> Result<(Option<Percent>, Vec<Percent>), Refusal> {
        let (most, ranks) = match (&self.request.threads, self.request.replicas) {
            (_, Some(replicas)) => (Some(Percent::part_of(replicas)), Vec::new()),
            (None, None) => (None, Vec::new()),
            (Some(Threads::Auto), _) => (Some(Percent::auto(self.tasks("MPS_THREADS")?)), Vec::new()),
            (Some(Threads::Uniform(percent)), _) => (Some(*percent), Vec::new()),
            (Some(Threads::PerRank(list)), _) => (list.iter().max().copied(), list.clone()),
        };
        let Some(ceiling) = self.ceilings.threads else {
            return Ok((most, ranks));
        };
        match (&self.asked.threads, self.asked.replicas) {
            (_, Some(_)) if most > Some(ceiling) => {
                let least = u32::from(Percent::WHOLE.tenths()).div_ceil(ceiling.tenths().into());
                let allowed = format!("at least {least} replicas");
                Err(self.above(Key::Replicas, "thread percentage", ceiling, allowed))
            }
            (Some(Threads::Uniform(_) | Threads::PerRank(_)), _) if most > Some(ceiling) => {
                let allowed = format!("1 to {ceiling}");
                Err(self.above(Key::Threads, "thread percentage", ceiling, allowed))
            }
            _ => Ok((
                Some(most.map_or(ceiling, |most| most.min(ceiling))),
                ranks.into_iter().map(|percent| percent.min(ceiling)).collect(),
            )),
        }
    }

    fn memory(&self) -> Result<Memory, Refusal> {
        let even = |parts: u32| {
            self.on_each(|gpu| {
                let total = gpu.memory_mib.ok_or_else(|| self.untold(gpu))?;
                Ok((total / u64::from(parts.max(1))).max(1))
            })
        };
        let all = |amount: Amount| self.on_each(|gpu| self.part(gpu, amount));
        let daemons = match (&self.request.memory, self.request.replicas) {
            (_, Some(replicas)) => even(replicas)?,
            (None, None) => match self.ceilings.memory {
                Some(_) => self.on_each(|gpu| Ok(gpu.memory_mib.unwrap_or(u64::MAX)))?,
                None => Vec::new(),
            },
            (Some(MemoryLimit::Auto), _) => even(self.tasks("MPS_MEM")?)?,
            (Some(MemoryLimit::Uniform(amount)), _) => all(*amount)?,
            (Some(MemoryLimit::PerGpu(list)), _) => self.by_gpu(list)?,
            (Some(MemoryLimit::PerRank(list)), _) => {
                let ranks = list.iter().map(|amount| all(*amount));
                let ranks = ranks.collect::<Result<Vec<_>, _>>()?;
                // As with threads, the daemon holds the largest and each rank lowers its own.
                let most = self.gpus.iter().enumerate().filter_map(|(n, gpu)| {
                    let most = ranks.iter().map(|rank| rank[n].1).max();
                    Some((gpu.uuid.clone(), most?))
                });
                return Ok((most.collect(), ranks));
            }
        };
        Ok((daemons, Vec::new()))
    }

    fn on_each(&self, mib: impl Fn(&Gpu) -> Result<u64, Refusal>) -> Result<Vec<(GpuUuid, u64)>, Refusal> {
        let limit = |gpu: &&Gpu| Ok((gpu.uuid.clone(), self.limit(gpu, mib(gpu)?)?));
        self.gpus.iter().map(limit).collect()
    }

    /// So much of a GPU, MiB.
    fn part(&self, gpu: &Gpu, amount: Amount) -> Result<u64, Refusal> {
        let part = amount.mebibytes_of(gpu.memory_mib);
        part.ok_or_else(|| self.untold(gpu))
    }

    /// The job's share of a GPU's memory, where nobody knows of how much.
    fn untold(&self, gpu: &Gpu) -> Refusal {
        let key = match self.request.replicas {
            Some(_) => Key::Replicas,
            None => Key::Mem,
        };
        let word = self.wording.token(key, self.request.value(key).as_deref());
        let size = self.wording.token(Key::Mem, Some("4G"));
        untold(one_line(&word, SHOWN), gpu, &format!("a size, as in {size}"))
    }

    /// The ceiling on a GPU, MiB.
    fn ceiling(&self, gpu: &Gpu, ceiling: Amount) -> Result<u64, Refusal> {
        let most = ceiling.mebibytes_of(gpu.memory_mib);
        most.ok_or_else(|| {
            let what = format!("this site's memory ceiling of {ceiling}");
            untold(what, gpu, "none, until an administrator sets it to a size")
        })
    }

    /// A limit of so many MiB on a GPU, under the ceiling.
    fn limit(&self, gpu: &Gpu, mib: u64) -> Result<u64, Refusal> {
        let total = gpu.memory_mib.unwrap_or(u64::MAX);
        if let Some(ceiling) = self.ceilings.memory
            && let most = self.ceiling(gpu, ceiling)?
            && mib > most
        {
            let above = |key, allowed| Err(self.above(key, "memory limit", ceiling, allowed));
            return match (&self.asked.memory, self.asked.replicas) {
                (_, Some(_)) => above(Key::Replicas, "more replicas, each of them smaller".to_owned()),
                (None | Some(MemoryLimit::Auto), _) => Ok(most.min(total)),
                _ => above(Key::Mem, format!("at most {ceiling}")),
            };
        }
        if mib > total {
            let what = format!("memory limit {}", Amount::Mebibytes(mib));
            let why = format!("GPU {} '{}' has {total}M", gpu.index, gpu.name);
            let allowed = format!("at most {total}M, or a share such as 25%");
            return Err(Refusal::new(what, why, allowed));
        }
        Ok(mib)
    }

    /// Limits by GPU; those that the list leaves out have the ceiling.
    fn by_gpu(&self, list: &[(GpuSelector, Amount)]) -> Result<Vec<(GpuUuid, u64)>, Refusal> {
        let mut limits = Vec::new();
        for (selector, amount) in list {
            // Indexes count within the job: 0 is its first GPU on this node.
            let gpu = match selector {
                GpuSelector::Index(n) => self.gpus.get(*n as usize),
                GpuSelector::Uuid(uuid) => self.gpus.iter().find(|g| g.uuid == *uuid),
            };
            let gpu = gpu.ok_or_else(|| {
                let (has, allowed) = match self.gpus.len() {
                    1 => ("one GPU".to_owned(), "0, or its UUID".to_owned()),
                    count => (
                        format!("{count} GPUs"),
                        format!("0 to {}, or the UUID of one of them", count.saturating_sub(1)),
                    ),
                };
                let why = format!("the job has {has} on this node");
                Refusal::new(format!("memory limit for GPU {selector}"), why, allowed)
            })?;
            limits.push((gpu.uuid.clone(), self.limit(gpu, self.part(gpu, *amount)?)?));
        }
        if let Some(ceiling) = self.ceilings.memory {
            let named: Vec<GpuUuid> = limits.iter().map(|(uuid, _)| uuid.clone()).collect();
            let left_out = self.gpus.iter().filter(|gpu| !named.contains(&gpu.uuid));
            for gpu in left_out {
                let most = self.ceiling(gpu, ceiling)?;
                limits.push((gpu.uuid.clone(), most.min(gpu.memory_mib.unwrap_or(most))));
            }
        }
        Ok(limits)
    }
}

/// What can only be reckoned from a GPU's memory, which NVML does not tell.
fn untold(what: String, gpu: &Gpu, allowed: &str) -> Refusal {
    let why = format!(
        "NVML does not tell how much memory GPU {} '{}' has",
        gpu.index, gpu.name
    );
    Refusal::new(what, why, allowed)
}

#[cfg(test)]
mod tests;
