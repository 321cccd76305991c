//! Limits made concrete: per cents of threads, and MiB on each of the job's GPUs, under the site's
//! ceilings. Here a job that asks for too much is refused.

use super::draft::{Draft, NO_PART, NO_TASKS};
use batch::Part;
use mpsd_core::config::MemoryOverLimit;
use mpsd_core::limits::{Amount, Percent, Priority};
use mpsd_core::paths::JobPaths;
use mpsd_core::record::Daemon;
use mpsd_core::request::{Key, MemoryLimit, Syntax, Threads};
use mpsd_core::{Gpu, GpuUuid, Refusal};

const SITES: &str = "this site's ceiling of";

/// MiB by GPU.
type Memory = Vec<(GpuUuid, u64)>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    threads: Option<Percent>,
    memory: Memory,
    priority: Option<Priority>,
    /// By local rank; empty if all have the daemon's.
    rank_threads: Vec<Percent>,
    rank_memory: Vec<Memory>,
}

impl Limits {
    /// A shared daemon does not hold a job's own limits, so every rank has them.
    pub fn rank_threads(&self, shared: bool) -> Vec<Percent> {
        let all = self
            .threads
            .filter(|_| shared && self.rank_threads.is_empty());
        all.map_or_else(|| self.rank_threads.clone(), |percent| vec![percent])
    }

    pub fn rank_memory(&self, shared: bool) -> Vec<Memory> {
        match shared && self.rank_memory.is_empty() && !self.memory.is_empty() {
            true => vec![self.memory.clone()],
            false => self.rank_memory.clone(),
        }
    }

    /// How many clients with this limit fit on each GPU: maybe more than the job has tasks.
    pub fn divides_memory_by(&self, gpus: &[&Gpu]) -> Option<u32> {
        let whole = |uuid: &GpuUuid| gpus.iter().find(|gpu| gpu.uuid == *uuid)?.memory_mib;
        let memory = self.memory.iter();
        let parts = memory.filter_map(|(uuid, mib)| whole(uuid)?.checked_div(*mib));
        u32::try_from(parts.min()?).ok()
    }

    /// The daemon `number` of `count` in the job's directory.
    pub fn daemon(&self, gpus: &[&Gpu], paths: &JobPaths, number: usize, count: usize) -> Daemon {
        let (pipe, log) = JobPaths::daemon_names(number, count);
        let is_here = |(uuid, _): &&(GpuUuid, u64)| gpus.iter().any(|gpu| gpu.uuid == *uuid);
        Daemon {
            gpus: gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
            pipe: paths.file(&pipe),
            log: paths.file(&log),
            threads: self.threads,
            memory: self.memory.iter().filter(is_here).cloned().collect(),
            priority: self.priority,
        }
    }
}

impl Draft<'_> {
    /// A user's number above a ceiling is refused; any other is lowered to it.
    pub fn limits(&self) -> Result<Limits, Refusal> {
        let (threads, rank_threads) = self.threads()?;
        let (memory, rank_memory) = self.memory()?;
        Ok(Limits {
            threads,
            memory,
            priority: self.filled.priority,
            rank_threads,
            rank_memory,
        })
    }

    /// What the job's clients may hold together: `job=SIZE`, or with `auto` the job's part, on GPUs
    /// that jobs share.
    pub fn job_memory(&self, limits: &Limits) -> Memory {
        match (&self.filled.memory, self.part) {
            _ if self.settings.memory_over_limit == MemoryOverLimit::Ignore => Vec::new(),
            (Some(MemoryLimit::Job(_)), _) => limits.memory.clone(),
            (Some(MemoryLimit::Auto), Some(part)) if self.shared => {
                let of = |total: u64| total * u64::from(part.own) / u64::from(part.all.max(1));
                let gpus = self.gpus.iter();
                gpus.filter_map(|gpu| Some((gpu.uuid.clone(), of(gpu.memory_mib?))))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// The most that the site lets a client have, for a daemon that several jobs share.
    pub fn ceilings(&self) -> Result<Limits, Refusal> {
        let memory = match self.settings.ceilings.memory {
            None => Vec::new(),
            Some(ceiling) => self.on_each(|gpu| self.ceiling(gpu, ceiling))?,
        };
        Ok(Limits {
            threads: self.settings.ceilings.threads,
            memory,
            ..Limits::default()
        })
    }

    /// What `auto` gives each task, as `own` of `all` parts: the job's part of the GPU, divided by
    /// the tasks that meet there, or by one if nobody knows how many meet on a shared GPU.
    fn auto_parts(&self, key: Key) -> Result<(u64, u64), Refusal> {
        let tasks = match self.meeting {
            Some(tasks) => u64::from(tasks.max(1)),
            None if self.shared => 1,
            None => {
                let option = match self.asked.syntax {
                    Syntax::Flags => "-n",
                    Syntax::Account | Syntax::Resource => "mpiprocs, ppn",
                };
                let allowed = format!("the number of the job's tasks ({option}), or a fixed value");
                return Err(self.refuse(key, NO_TASKS, allowed));
            }
        };
        match (self.shared, self.part) {
            (false, _) => Ok((1, tasks)),
            (true, Some(Part { own, all, .. })) => Ok((own.into(), u64::from(all) * tasks)),
            (true, None) => Err(self.refuse(key, NO_PART, "a fixed value")),
        }
    }

    /// The daemon gets the largest value of a list: clients can only lower it
    /// (docs/facts/mps-control.md#clients).
    fn threads(&self) -> Result<(Option<Percent>, Vec<Percent>), Refusal> {
        let (most, ranks) = match &self.filled.threads {
            None => (None, Vec::new()),
            Some(Threads::Auto) => {
                let (own, all) = self.auto_parts(Key::Threads)?;
                (Some(Percent::auto(own, all)), Vec::new())
            }
            Some(Threads::Uniform(percent)) => (Some(*percent), Vec::new()),
            Some(Threads::PerRank(list)) => (list.iter().max().copied(), list.clone()),
        };
        let part_of_threads = self.part.filter(|part| part.of_threads);
        let of_job = part_of_threads.map(|part| Percent::of(part.own.into(), part.all.into()));
        let of_site = self.settings.ceilings.threads;
        let Some(ceiling) = of_site.into_iter().chain(of_job).min() else {
            return Ok((most, ranks));
        };
        let is_typed = !matches!(self.asked.request.threads, None | Some(Threads::Auto));
        if is_typed && most > Some(ceiling) {
            let whose = match of_site == Some(ceiling) {
                true => format!("{SITES} {ceiling}"),
                false => format!("the job's share of the GPU, {ceiling}"),
            };
            let why = format!("the thread percentage is above {whose}");
            return Err(self.refuse(Key::Threads, why, format!("1 to {ceiling}")));
        }
        let ranks = ranks.into_iter().map(|percent| percent.min(ceiling));
        // Without a number, Slurm's own variable already holds the tasks to the job's part.
        let most = most.or(of_site).map(|most| most.min(ceiling));
        Ok((most, ranks.collect()))
    }

    fn memory(&self) -> Result<(Memory, Vec<Memory>), Refusal> {
        let all = |amount: Amount| self.on_each(|gpu| self.mebibytes(gpu, amount));
        let daemons = match &self.filled.memory {
            None if self.settings.ceilings.memory.is_none() => Vec::new(),
            None => self.on_each(|gpu| Ok(gpu.memory_mib.unwrap_or(u64::MAX)))?,
            Some(MemoryLimit::Auto) => {
                let (own, all) = self.auto_parts(Key::Mem)?;
                self.on_each(|gpu| {
                    let total = gpu.memory_mib.ok_or_else(|| self.untold_part(gpu))?;
                    Ok((total * own / all.max(1)).clamp(1, total))
                })?
            }
            Some(MemoryLimit::Job(_))
                if self.asked.request.memory.is_some()
                    && self.settings.memory_over_limit == MemoryOverLimit::Ignore =>
            {
                let why = "this site does not watch the memory of a job's clients";
                return Err(self.refuse(Key::Mem, why, "a limit of each client, as in 4G"));
            }
            Some(MemoryLimit::Uniform(amount) | MemoryLimit::Job(amount)) => all(*amount)?,
            Some(MemoryLimit::PerRank(list)) => {
                let ranks = list.iter().map(|amount| all(*amount));
                let ranks = ranks.collect::<Result<Vec<_>, _>>()?;
                // As with threads, the daemon holds the largest.
                let most = self.gpus.iter().enumerate().filter_map(|(n, gpu)| {
                    let most = ranks.iter().map(|rank| rank[n].1).max();
                    Some((gpu.uuid.clone(), most?))
                });
                return Ok((most.collect(), ranks));
            }
        };
        Ok((daemons, Vec::new()))
    }

    fn on_each(&self, mib: impl Fn(&Gpu) -> Result<u64, Refusal>) -> Result<Memory, Refusal> {
        let bounded = |gpu: &&Gpu| Ok((gpu.uuid.clone(), self.bounded(gpu, mib(gpu)?)?));
        self.gpus.iter().map(bounded).collect()
    }

    fn mebibytes(&self, gpu: &Gpu, amount: Amount) -> Result<u64, Refusal> {
        let part = amount.mebibytes_of(gpu.memory_mib);
        part.ok_or_else(|| self.untold_part(gpu))
    }

    fn untold_part(&self, gpu: &Gpu) -> Refusal {
        let size = self.asked.syntax.token(Key::Mem, Some("4G"));
        self.refuse(Key::Mem, untold(gpu), format!("a size, as in {size}"))
    }

    fn ceiling(&self, gpu: &Gpu, ceiling: Amount) -> Result<u64, Refusal> {
        let most = ceiling.mebibytes_of(gpu.memory_mib);
        most.ok_or_else(|| {
            let what = format!("this site's memory ceiling of {ceiling}");
            let allowed = "none, until an administrator sets it to a size";
            Refusal::new(what, untold(gpu), allowed)
        })
    }

    /// A user's number that is too much is refused, any other lowered.
    fn bounded(&self, gpu: &Gpu, mib: u64) -> Result<u64, Refusal> {
        let total = gpu.memory_mib.unwrap_or(u64::MAX);
        let is_typed = !matches!(self.asked.request.memory, None | Some(MemoryLimit::Auto));
        let ceiling = self.settings.ceilings.memory;
        let most = ceiling.map_or(Ok(u64::MAX), |ceiling| self.ceiling(gpu, ceiling))?;
        match ceiling {
            Some(ceiling) if is_typed && mib > most => {
                let why = format!("the memory limit is above {SITES} {ceiling}");
                Err(self.refuse(Key::Mem, why, format!("at most {ceiling}")))
            }
            _ if is_typed && mib > total => {
                let what = format!("memory limit {}", Amount::Mebibytes(mib));
                let why = format!("GPU {} '{}' has {total}M", gpu.index, gpu.name);
                let allowed = format!("at most {total}M, or a share such as 25%");
                Err(Refusal::new(what, why, allowed))
            }
            _ => Ok(mib.min(most).min(total)),
        }
    }
}

fn untold(gpu: &Gpu) -> String {
    let Gpu { index, name, .. } = gpu;
    format!("NVML does not tell how much memory GPU {index} '{name}' has")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Asked;
    use mpsd_core::bind::Bind;
    use mpsd_core::config::Settings;
    use mpsd_core::request::Syntax;
    use mpsd_core::testing::gpu;
    use mpsd_core::{Inventory, Request};

    /// Tries rows `settings | tokens | the limits, or how the refusal begins`.
    fn check(part: Option<Part>, memory: &[Option<u64>], tasks: Option<u32>, rows: &str) {
        for row in rows.trim().lines() {
            let [config, tokens, expected] = row.split('|').collect::<Vec<_>>()[..] else {
                panic!("{row}");
            };
            let (config, account) = (config.replace(';', "\n"), format!("MPS=on,{tokens}"));
            let account = account.trim().trim_end_matches(',');
            match limits(part, &config, account, memory, tasks) {
                Ok(told) => assert_eq!(told, expected.trim(), "{row}"),
                Err(refusal) => assert!(refusal.starts_with(expected.trim()), "{row}: {refusal}"),
            }
        }
    }

    fn limits(
        part: Option<Part>,
        config: &str,
        account: &str,
        memory: &[Option<u64>],
        tasks: Option<u32>,
    ) -> Result<String, String> {
        let settings = Settings::parse(config, "n1").unwrap();
        let gpus = (0..).zip(memory).map(|(index, memory)| gpu(index, *memory));
        let gpus: Vec<Gpu> = gpus.collect();
        let asked = Asked {
            request: Request::from_account(account).unwrap().unwrap(),
            syntax: Syntax::Account,
            by_site: false,
        };
        let draft = Draft {
            asked: &asked,
            filled: settings.with_defaults(&asked.request),
            settings: &settings,
            inventory: &Inventory::default(),
            gpus: gpus.iter().collect(),
            tasks: None,
            meeting: tasks,
            may_share: part.is_some(),
            shared: part.is_some(),
            part,
            bind: Bind::DEFAULT,
            names: settings.cuda_visible_devices,
            clients: None,
        };
        let limits = draft.limits().map_err(|refusal| refusal.to_string())?;
        let threads = limits.threads.map(|percent| percent.to_string());
        let mib = |memory: &[(GpuUuid, u64)]| -> Vec<u64> {
            memory.iter().map(|(_, mib)| *mib).collect()
        };
        let mut told = format!(
            "{} {:?}",
            threads.as_deref().unwrap_or("all"),
            mib(&limits.memory)
        );
        for (number, percent) in limits.rank_threads.iter().enumerate() {
            told += &format!("{}{percent}", if number == 0 { ' ' } else { ':' });
        }
        let together = mib(&draft.job_memory(&limits));
        if !together.is_empty() {
            told += &format!(" together {together:?}");
        }
        Ok(told)
    }

    const GIB_80: [Option<u64>; 1] = [Some(81_920)];
    const UNEQUAL: [Option<u64>; 2] = [Some(81_920), Some(4_096)];

    fn part(own: u32, all: u32, of_threads: bool) -> Option<Part> {
        Some(Part {
            own,
            all,
            of_threads,
        })
    }

    #[test]
    fn a_number_above_the_ceiling_is_refused() {
        let rows = r#"
MPS_THREADS=80 | MPS_THREADS=80: the thread percentage is above this site's ceiling of 50; allowed: 1 to 50
MPS_THREADS=30:50.1 | MPS_THREADS=30:50.1: the thread percentage is above
MPS_MEM=11G | MPS_MEM=11G: the memory limit is above this site's ceiling of 10G; allowed: at most 10G
MPS_MEM=2G:11G | MPS_MEM=2G:11G: the memory limit is above
MPS_MEM=13% | MPS_MEM=13%: the memory limit is above
MPS_THREADS=50,MPS_MEM=10G | 50 [10240, 10240]
MPS_MEM=12.5%,MPS_THREADS=1 | 1 [10240, 10240]"#;
        let ceilings = "\nceilings.threads = 50; ceilings.mem = \"10G\" | ";
        let rows = rows.replace('\n', ceilings);
        check(None, &[Some(81_920); 2], None, &rows);
    }

    #[test]
    fn a_jobs_own_sum_is_each_clients_limit_too_and_no_other_limit_is_a_sum() {
        let rows = r#"
 | MPS_MEM=job=50% | all [40960, 2048] together [40960, 2048]
defaults.mem = "job=99G"; ceilings.mem = "10G" | | all [10240, 4096] together [10240, 4096]
ceilings.mem = "10G" | MPS_MEM=job=11G | MPS_MEM=job=11G: the memory limit is above this site's ceiling of 10G; allowed: at most 10G
memory_over_limit = "ignore" | MPS_MEM=job=4G | MPS_MEM=job=4G: this site does not watch
memory_over_limit = "ignore"; defaults.mem = "job=1G" | | all [1024, 1024]
 | MPS_MEM=4G | all [4096, 4096]
 | MPS_MEM=auto | all [20480, 1024]
 | MPS_MEM=2G:4G | all [4096, 4096]"#;
        check(None, &UNEQUAL, Some(4), rows);
    }

    #[test]
    fn a_jobs_part_of_a_shared_gpu_is_its_clients_together() {
        let rows = r#"
 | MPS_MEM=auto | all [10240] together [20480]
ceilings.mem = "4G" | MPS_MEM=auto | all [4096] together [20480]
 | MPS_MEM=4G | all [4096]"#;
        check(part(4, 16, false), &GIB_80, Some(2), rows);
    }

    /// A GPU with less than the ceiling gives what it has.
    #[test]
    fn what_is_no_number_of_the_user_is_lowered_to_the_ceiling() {
        let all = r#"
CEILINGS | | 50 [10240, 4096]
CEILINGS; defaults.threads = "20:80"; defaults.mem = "99%" | | 50 [10240, 4055] 20:50
CEILINGS; defaults.mem = "99G" | | 50 [10240, 4096]
CEILINGS; defaults.mem = "8G" | | 50 [8192, 4096]
defaults.mem = "8G" | | all [8192, 4096]"#;
        let rows =
            |rows: &str| rows.replace("CEILINGS", "ceilings.threads = 50; ceilings.mem = \"10G\"");
        check(None, &UNEQUAL, None, &rows(all));
        let auto = rows("CEILINGS | MPS_THREADS=auto,MPS_MEM=auto | ");
        for (tasks, expected) in [(16, "12.5 [5120, 256]"), (2, "50 [10240, 2048]")] {
            check(None, &UNEQUAL, Some(tasks), &(auto.clone() + expected));
        }
    }

    #[test]
    fn a_part_of_the_threads_is_the_most_that_a_job_gets_of_them() {
        // With auto it would be twice the part.
        let rows = "
 | | all []
 | MPS_THREADS=25 | 25 []
 | MPS_THREADS=auto | 25 []
defaults.threads = 50 | | 25 []
ceilings.threads = 50 | | 25 []
ceilings.threads = 10 | | 10 []
ceilings.threads = 50 | MPS_THREADS=50 | MPS_THREADS=50: WHY; allowed: 1 to 25
ceilings.threads = 50 | MPS_THREADS=5:50 | MPS_THREADS=5:50: WHY; allowed: 1 to 25";
        let why = "the thread percentage is above the job's share of the GPU, 25";
        check(
            part(25, 100, true),
            &GIB_80,
            None,
            &rows.replace("WHY", why),
        );
        // Shards limit nothing by themselves.
        let rows = " | MPS_THREADS=50 | 50 []";
        check(part(25, 100, false), &GIB_80, None, rows);
    }

    #[test]
    fn a_ceiling_below_its_share_divides_a_gpu_by_more() {
        let gpus = [gpu(0, 81_920), gpu(1, 40_960)];
        let parts = |memory: [u64; 2]| {
            let uuids = gpus.iter().map(|gpu| gpu.uuid.clone());
            let limits = Limits {
                memory: uuids.zip(memory).collect(),
                ..Limits::default()
            };
            limits.divides_memory_by(&gpus.each_ref())
        };
        assert_eq!(parts([40_960, 20_480]), Some(2), "the share of two tasks");
        // Under a ceiling of 10G: four tasks on one of them may keep it.
        assert_eq!(parts([10_240, 10_240]), Some(4));
    }

    #[test]
    fn where_no_size_is_told_a_size_is_a_limit_and_a_share_is_refused() {
        let rows = r#"
 | | all []
 | MPS_MEM=4G | all [4096, 4096]
 | MPS_MEM=2G:4G | all [4096, 4096]
ceilings.mem = "10G" | | all [10240, 10240]
 | MPS_MEM=25% | MPS_MEM=25%: WHY
 | MPS_MEM=auto | MPS_MEM=auto: WHY
 | MPS_MEM=4G:25% | MPS_MEM=4G:25%: WHY
defaults.mem = "25%" | | MPS_MEM=25%: WHY
ceilings.mem = "10G" | MPS_MEM=25% | MPS_MEM=25%: WHY
ceilings.mem = "50%" | | this site's memory ceiling of 50%: WHY
ceilings.mem = "50%" | MPS_MEM=4G | this site's memory ceiling of 50%: WHY"#;
        let why = "NVML does not tell how much memory GPU 0 'NVIDIA X' has; allowed:";
        let rows = rows.replace("WHY", why);
        // GPU 0 tells no size, GPU 1 does.
        check(None, &[None, Some(81_920)], Some(4), &rows);
    }
}
