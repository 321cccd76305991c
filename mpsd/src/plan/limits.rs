//! Limits made concrete: `auto` and percentages become per cents and MiB of the job's own
//! GPUs, under the site's ceilings. Here a job that asks for too much is refused.

use super::draft::{Draft, NO_PART, NO_TASKS};
use batch::Part;
use mpsd_core::config::MemoryOverLimit;
use mpsd_core::limits::{Amount, Percent, Priority};
use mpsd_core::record::Daemon;
use mpsd_core::request::{Key, MemoryLimit, Syntax, Threads};
use mpsd_core::{Gpu, GpuUuid, Refusal};
use std::path::PathBuf;

const SITES: &str = "this site's ceiling of";

/// MiB by GPU.
type Memory = Vec<(GpuUuid, u64)>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    threads: Option<Percent>,
    memory: Memory,
    priority: Option<Priority>,
    /// Thread percentage by local rank; empty if all have the daemon's.
    rank_threads: Vec<Percent>,
    /// Memory by local rank; empty if all have the daemon's.
    rank_memory: Vec<Memory>,
}

impl Limits {
    /// Thread percentage by local rank. A shared daemon does not hold a job's own limits, so every
    /// rank has them.
    pub fn rank_threads(&self, shared: bool) -> Vec<Percent> {
        let all = self
            .threads
            .filter(|_| shared && self.rank_threads.is_empty());
        all.map_or_else(|| self.rank_threads.clone(), |percent| vec![percent])
    }

    /// Memory by local rank, likewise.
    pub fn rank_memory(&self, shared: bool) -> Vec<Memory> {
        match shared && self.rank_memory.is_empty() && !self.memory.is_empty() {
            true => vec![self.memory.clone()],
            false => self.rank_memory.clone(),
        }
    }

    /// How many clients with this limit fit on each of the GPUs: under a low ceiling, more than the
    /// job has tasks.
    pub fn divides_memory_by(&self, gpus: &[&Gpu]) -> Option<u32> {
        let whole = |uuid: &GpuUuid| gpus.iter().find(|gpu| gpu.uuid == *uuid)?.memory_mib;
        let memory = self.memory.iter();
        let parts = memory.filter_map(|(uuid, mib)| whole(uuid)?.checked_div(*mib));
        u32::try_from(parts.min()?).ok()
    }

    pub fn daemon(&self, gpus: &[&Gpu], pipe: PathBuf, log: PathBuf) -> Daemon {
        let is_here = |(uuid, _): &&(GpuUuid, u64)| gpus.iter().any(|gpu| gpu.uuid == *uuid);
        Daemon {
            gpus: gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
            pipe,
            log,
            threads: self.threads,
            memory: self.memory.iter().filter(is_here).cloned().collect(),
            priority: self.priority,
        }
    }
}

impl Draft<'_> {
    /// The limits. A user's number above a ceiling is refused. A number that mpsd computes is
    /// lowered to it.
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

    /// What the job's clients may hold together: its user's number, or `auto` on GPUs that jobs
    /// share. On those, tasks that meet or a ceiling leave one client less than the job's part.
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

    /// The most that the site lets a client have, as the limits of a daemon that several jobs
    /// share.
    pub fn ceilings(&self) -> Result<Limits, Refusal> {
        let memory = match self.settings.ceilings.memory {
            None => Vec::new(),
            Some(ceiling) => self.on_each(|gpu| self.ceiling(gpu, ceiling))?,
        };
        Ok(Limits {
            threads: self.settings.ceilings.threads,
            memory,
            priority: None,
            rank_threads: Vec::new(),
            rank_memory: Vec::new(),
        })
    }

    /// What `auto` gives each task of a GPU for `key`, as `own` of `all` parts: the job's part,
    /// divided by the tasks that meet there. On a shared GPU an unknown number of tasks counts as
    /// one.
    fn auto_parts(&self, key: Key) -> Result<(u64, u64), Refusal> {
        let tasks = match (self.shared, self.meeting) {
            (true, None) => 1,
            _ => u64::from(self.meeting_tasks(key)?.max(1)),
        };
        match (self.shared, self.part) {
            (false, _) => Ok((1, tasks)),
            (true, Some(Part { own, all, .. })) => Ok((own.into(), u64::from(all) * tasks)),
            (true, None) => Err(self.refuse(key, NO_PART, "a fixed value")),
        }
    }

    fn meeting_tasks(&self, key: Key) -> Result<u32, Refusal> {
        self.meeting.ok_or_else(|| {
            let allowed = match self.asked.syntax {
                Syntax::Flags => "the number of the job's tasks (-n), or a fixed value",
                Syntax::Account | Syntax::Resource => {
                    "the number of the job's tasks (mpiprocs, ppn), or a fixed value"
                }
            };
            self.refuse(key, NO_TASKS, allowed)
        })
    }

    /// The part of a GPU's threads that the scheduler gave to the job.
    fn threads_of_job(&self) -> Option<Percent> {
        let Part { own, all, .. } = self.part.filter(|part| part.of_threads)?;
        Some(Percent::of(own.into(), all.into()))
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
        let (of_site, of_job) = (self.settings.ceilings.threads, self.threads_of_job());
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
        // If nobody gave a number, the scheduler's own variable limits the tasks to the job's part.
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

    fn on_each(&self, mib: impl Fn(&Gpu) -> Result<u64, Refusal>) -> Result<Memory, Refusal> {
        let limit = |gpu: &&Gpu| Ok((gpu.uuid.clone(), self.limit(gpu, mib(gpu)?)?));
        self.gpus.iter().map(limit).collect()
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

    /// MiB on a GPU, bounded by the ceiling and the GPU's size. A higher number of the user is
    /// refused, any other is lowered.
    fn limit(&self, gpu: &Gpu, mib: u64) -> Result<u64, Refusal> {
        let total = gpu.memory_mib.unwrap_or(u64::MAX);
        let is_typed = !matches!(self.asked.request.memory, None | Some(MemoryLimit::Auto));
        let most = match self.settings.ceilings.memory {
            Some(ceiling) => self.ceiling(gpu, ceiling)?,
            None => u64::MAX,
        };
        match self.settings.ceilings.memory {
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
    use mpsd_core::{Inventory, Request};

    fn gpu(index: u32, memory_mib: impl Into<Option<u64>>) -> Gpu {
        Gpu {
            index,
            uuid: GpuUuid::parse(&format!("GPU-0000000{index}")).unwrap(),
            name: "NVIDIA X".to_owned(),
            memory_mib: memory_mib.into(),
            mig: mpsd_core::gpu::Mig::Off,
            capability: (9, 0),
            minor: None,
            cpus: None,
        }
    }

    fn limits(
        config: &str,
        account: &str,
        memory: &[impl Into<Option<u64>> + Copy],
        tasks: Option<u32>,
    ) -> Result<String, String> {
        limits_of_part(None, config, account, memory, tasks)
    }

    fn limits_of_part(
        part: Option<Part>,
        config: &str,
        account: &str,
        memory: &[impl Into<Option<u64>> + Copy],
        tasks: Option<u32>,
    ) -> Result<String, String> {
        let settings = Settings::parse(config, "n1").unwrap();
        let gpus: Vec<Gpu> = (0..)
            .zip(memory)
            .map(|(index, memory)| gpu(index, *memory))
            .collect();
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
            shared: part.is_some(),
            part,
            bind: Bind::DEFAULT,
            names: settings.cuda_visible_devices,
            clients: None,
        };
        let limits = draft.limits().map_err(|refusal| refusal.to_string())?;
        let threads = limits
            .threads
            .map_or("all".to_owned(), |percent| percent.to_string());
        let memory: Vec<u64> = limits.memory.iter().map(|(_, mib)| *mib).collect();
        let ranks: Vec<String> = limits
            .rank_threads
            .iter()
            .map(ToString::to_string)
            .collect();
        let together = draft.job_memory(&limits);
        let together: Vec<u64> = together.iter().map(|(_, mib)| *mib).collect();
        let together = match &together[..] {
            [] => String::new(),
            together => format!("together {together:?}"),
        };
        Ok(
            format!("{threads} {memory:?} {}{together}", ranks.join(":"))
                .trim_end()
                .to_owned(),
        )
    }

    #[test]
    fn a_number_above_the_ceiling_is_refused() {
        let config = "[ceilings]\nthreads = 50\nmem = \"10G\"";
        let cases = [
            (
                "MPS=on,MPS_THREADS=80",
                "MPS_THREADS=80: the thread percentage is above this site's ceiling of 50; allowed: 1 to 50",
            ),
            (
                "MPS=on,MPS_THREADS=30:50.1",
                "MPS_THREADS=30:50.1: the thread percentage is above",
            ),
            (
                "MPS=on,MPS_MEM=11G",
                "MPS_MEM=11G: the memory limit is above this site's ceiling of 10G; allowed: at most 10G",
            ),
            (
                "MPS=on,MPS_MEM=2G:11G",
                "MPS_MEM=2G:11G: the memory limit is above",
            ),
            (
                "MPS=on,MPS_MEM=13%",
                "MPS_MEM=13%: the memory limit is above",
            ),
        ];
        for (account, message) in cases {
            let refusal = limits(config, account, &[81_920, 81_920], None).unwrap_err();
            assert!(refusal.starts_with(message), "{refusal}");
        }
        for account in [
            "MPS=on,MPS_THREADS=50,MPS_MEM=10G",
            "MPS=on,MPS_MEM=12.5%,MPS_THREADS=1",
        ] {
            assert!(
                limits(config, account, &[81_920, 81_920], None).is_ok(),
                "{account}"
            );
        }
    }

    #[test]
    fn a_jobs_own_sum_is_each_clients_limit_too_and_no_other_limit_is_a_sum() {
        let of = |config: &str, account: &str| limits(config, account, &[81_920, 4_096], Some(4));
        assert_eq!(
            of("", "MPS=on,MPS_MEM=job=50%").as_deref(),
            Ok("all [40960, 2048] together [40960, 2048]")
        );
        let site = "[defaults]\nmem = \"job=99G\"\n[ceilings]\nmem = \"10G\"";
        assert_eq!(
            of(site, "MPS=on").as_deref(),
            Ok("all [10240, 4096] together [10240, 4096]")
        );
        let refusal = of(site, "MPS=on,MPS_MEM=job=11G").unwrap_err();
        assert!(refusal.ends_with("allowed: at most 10G"), "{refusal}");
        let ignores = "memory_over_limit = \"ignore\"\n";
        let refusal = of(ignores, "MPS=on,MPS_MEM=job=4G").unwrap_err();
        assert!(refusal.contains("does not watch"), "{refusal}");
        let by_default = format!("{ignores}[defaults]\nmem = \"job=1G\"");
        assert_eq!(of(&by_default, "MPS=on").as_deref(), Ok("all [1024, 1024]"));
        for account in ["MPS_MEM=4G", "MPS_MEM=auto", "MPS_MEM=2G:4G"] {
            let told = of("", &format!("MPS=on,{account}")).unwrap();
            assert!(!told.contains("together"), "{account}: {told}");
        }
    }

    #[test]
    fn a_jobs_part_of_a_shared_gpu_is_its_clients_together() {
        let part = Part {
            own: 4,
            all: 16,
            of_threads: false,
        };
        let of = |config: &str, account: &str| {
            limits_of_part(Some(part), config, account, &[81_920], Some(2)).unwrap()
        };
        let auto = "MPS=on,MPS_MEM=auto";
        assert_eq!(of("", auto), "all [10240] together [20480]");
        let ceiling = "[ceilings]\nmem = \"4G\"";
        assert_eq!(of(ceiling, auto), "all [4096] together [20480]");
        assert_eq!(of("", "MPS=on,MPS_MEM=4G"), "all [4096]");
    }

    #[test]
    fn what_is_no_number_of_the_user_is_lowered_to_the_ceiling() {
        let ceilings = "[ceilings]\nthreads = 50\nmem = \"10G\"\n";
        let with = |defaults: &str, account, tasks| {
            limits(
                &format!("{ceilings}{defaults}"),
                account,
                &[81_920, 4_096],
                tasks,
            )
            .unwrap()
        };
        // A GPU with less than the ceiling gives what it has.
        assert_eq!(with("", "MPS=on", None), "50 [10240, 4096]");
        assert_eq!(
            with(
                "[defaults]\nthreads = \"20:80\"\nmem = \"99%\"",
                "MPS=on",
                None
            ),
            "50 [10240, 4055] 20:50"
        );
        for default in ["99G", "8G"] {
            let config = format!("[defaults]\nmem = \"{default}\"");
            let gpu_0 = if default == "8G" { 8192 } else { 10_240 };
            assert_eq!(with(&config, "MPS=on", None), format!("50 [{gpu_0}, 4096]"));
        }
        let without_ceiling = limits("[defaults]\nmem = \"8G\"", "MPS=on", &[81_920, 4_096], None);
        assert_eq!(without_ceiling.unwrap(), "all [8192, 4096]");
        let auto = "MPS=on,MPS_THREADS=auto,MPS_MEM=auto";
        assert_eq!(with("", auto, Some(16)), "12.5 [5120, 256]");
        assert_eq!(with("", auto, Some(2)), "50 [10240, 2048]");
    }

    #[test]
    fn a_part_of_the_threads_is_the_most_that_a_job_gets_of_them() {
        let of = |of_threads, config: &str, account: &str| {
            let part = Part {
                own: 25,
                all: 100,
                of_threads,
            };
            limits_of_part(Some(part), config, account, &[81_920], None)
        };
        let ceiling = |percent| format!("[ceilings]\nthreads = {percent}\n");
        let default = "[defaults]\nthreads = 50\n".to_owned();
        for (config, account, expected) in [
            (String::new(), "MPS=on", "all []"),
            (String::new(), "MPS=on,MPS_THREADS=25", "25 []"),
            // Twice the part, but for this.
            (String::new(), "MPS=on,MPS_THREADS=auto", "25 []"),
            (default, "MPS=on", "25 []"),
            (ceiling(50), "MPS=on", "25 []"),
            (ceiling(10), "MPS=on", "10 []"),
        ] {
            let told = of(true, &config, account);
            assert_eq!(told.as_deref(), Ok(expected), "{config} {account}");
        }
        let why = "the thread percentage is above the job's share of the GPU, 25; allowed:";
        for what in ["MPS_THREADS=50", "MPS_THREADS=5:50"] {
            let refusal = of(true, &ceiling(50), &format!("MPS=on,{what}")).unwrap_err();
            assert_eq!(refusal, format!("{what}: {why} 1 to 25"));
        }
        // Shards limit nothing by themselves.
        assert_eq!(of(false, "", "MPS=on,MPS_THREADS=50").unwrap(), "50 []");
    }

    #[test]
    fn a_ceiling_below_its_share_divides_a_gpu_by_more() {
        let gpus = [gpu(0, 81_920), gpu(1, 40_960)];
        let parts = |memory: [u64; 2]| {
            let memory = gpus
                .iter()
                .zip(memory)
                .map(|(gpu, mib)| (gpu.uuid.clone(), mib));
            let limits = Limits {
                threads: None,
                memory: memory.collect(),
                priority: None,
                rank_threads: Vec::new(),
                rank_memory: Vec::new(),
            };
            limits.divides_memory_by(&gpus.iter().collect::<Vec<_>>())
        };
        assert_eq!(parts([40_960, 20_480]), Some(2), "the share of two tasks");
        // Under a ceiling of 10G: four tasks on one of them may keep it.
        assert_eq!(parts([10_240, 10_240]), Some(4));
    }

    /// GPU 0 tells no size, GPU 1 does.
    #[test]
    fn where_no_size_is_told_a_size_is_a_limit_and_a_share_is_refused() {
        let of =
            |config: &str, account: &str| limits(config, account, &[None, Some(81_920)], Some(4));
        let all = |memory: &[u64]| Ok(format!("all {memory:?}"));
        let size = "[ceilings]\nmem = \"10G\"\n";
        assert_eq!(of("", "MPS=on"), all(&[]));
        assert_eq!(of("", "MPS=on,MPS_MEM=4G"), all(&[4096, 4096]));
        assert_eq!(of("", "MPS=on,MPS_MEM=2G:4G"), all(&[4096, 4096]));
        assert_eq!(of(size, "MPS=on"), all(&[10_240, 10_240]));
        let why = "NVML does not tell how much memory GPU 0 'NVIDIA X' has; allowed:";
        for (config, account, what) in [
            ("", "MPS=on,MPS_MEM=25%", "MPS_MEM=25%"),
            ("", "MPS=on,MPS_MEM=auto", "MPS_MEM=auto"),
            ("", "MPS=on,MPS_MEM=4G:25%", "MPS_MEM=4G:25%"),
            ("[defaults]\nmem = \"25%\"\n", "MPS=on", "MPS_MEM=25%"),
            (size, "MPS=on,MPS_MEM=25%", "MPS_MEM=25%"),
            (
                "[ceilings]\nmem = \"50%\"\n",
                "MPS=on",
                "this site's memory ceiling of 50%",
            ),
            (
                "[ceilings]\nmem = \"50%\"\n",
                "MPS=on,MPS_MEM=4G",
                "this site's memory ceiling of 50%",
            ),
        ] {
            let refusal = of(config, account).unwrap_err();
            assert!(refusal.starts_with(&format!("{what}: {why}")), "{refusal}");
        }
    }
}
