//! Watches the memory of clients with a limit, because a client can void NVIDIA's limit
//! (docs/facts/mps-control.md#memory-limits). A shared daemon does not know the limits of its jobs,
//! so each client is held to the limits of its job. NVIDIA has no limit for all clients of a job.

use super::logs::UserLog;
use super::observer::Observer;
use super::session;
use super::start::Running;
use crate::job::spec::Spec;
use crate::node::nvml::Nvml;
use crate::node::tasks::is_of;
use mpsd_core::config::MemoryOverLimit;
use mpsd_core::observations::{OverMemory, keep};
use mpsd_core::record::{self, RecordRead};
use mpsd_core::{GpuUuid, JobId};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Between two checks while a client may exceed its limit; one costs 0.1 ms a GPU
/// (docs/facts/mps-control.md#nvml).
const PERIOD: Duration = Duration::from_secs(1);
const REPORT_PERIOD: Duration = Duration::from_secs(10);
/// What NVML counts beyond the limit: context and code. Up to 316 MiB on an H200
/// (docs/facts/mps-control.md#nvml).
const OVERHEAD_MIB: u64 = 512;

/// MiB by GPU.
type Limits = Vec<(GpuUuid, u64)>;

/// Of each job that shares the daemons, or of the one job: the limits of a client (the highest of
/// the job's ranks, as a daemon of its own would have), and of all its clients.
#[derive(Debug, Default)]
struct JobLimits(Vec<(JobId, Limits, Limits)>);

impl JobLimits {
    /// A job with a newer release's record has no limit: another job's must not end its clients.
    fn read(spec: &Spec) -> Self {
        let paths = spec.paths();
        let limits = |job: JobId| match record::look(&paths.job(&job).record()) {
            Ok(RecordRead::Found(record)) => {
                Some((job, highest(&record.rank_memory), record.job_memory))
            }
            // The job has left, and there was no room to write the list.
            Ok(RecordRead::Absent) => None,
            _ => Some((job, Vec::new(), Vec::new())),
        };
        let jobs = match spec.sharers_file() {
            Some(_) => spec.sharers(),
            None => [spec.job.clone()].into(),
        };
        Self(jobs.into_iter().filter_map(limits).collect())
    }

    /// A client that hides its job has the highest limit of all jobs here.
    fn of(&self, job: Option<&JobId>, gpu: &GpuUuid) -> Option<u64> {
        let is_its = |sharer: &JobId| job.is_some_and(|job| sharer.belongs_to(job));
        let hides = !self.0.iter().any(|(sharer, ..)| is_its(sharer));
        let sharers = self.0.iter().filter(|(sharer, ..)| hides || is_its(sharer));
        let limits = sharers.map(|(_, limits, _)| record::limit_on(limits, gpu));
        limits.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// Steps that joined by themselves add up, because a client's cgroup tells the job alone.
    fn together(&self, job: &JobId, gpu: &GpuUuid) -> Option<u64> {
        let members = self.0.iter().filter(|(member, ..)| member.whole() == *job);
        members.map(|(.., all)| record::limit_on(all, gpu)).sum()
    }
}

fn highest(ranks: &[Vec<(GpuUuid, u64)>]) -> Vec<(GpuUuid, u64)> {
    let mut limits: Vec<_> = ranks.iter().flatten().cloned().collect();
    limits.sort_by_key(|(_, mib)| Reverse(*mib));
    limits
}

/// Pid, GPU, and MiB.
type ClientMemory = (i32, GpuUuid, u64);

#[derive(Debug)]
pub struct MemoryWatch {
    policy: MemoryOverLimit,
    limits: Vec<(GpuUuid, u64)>,
    gpus: Vec<GpuUuid>,
    told: BTreeSet<(i32, GpuUuid)>,
    told_jobs: BTreeSet<(JobId, GpuUuid)>,
    /// Told to end, not gone yet: their memory no longer counts.
    ending: BTreeSet<i32>,
    told_silence: bool,
    active: bool,
    next: Instant,
}

impl MemoryWatch {
    pub fn new(spec: &Spec) -> Self {
        let daemons = spec.daemons.iter();
        Self {
            policy: spec.over_limit,
            limits: daemons.flat_map(|daemon| daemon.memory.clone()).collect(),
            gpus: spec.gpus(),
            told: BTreeSet::new(),
            told_jobs: BTreeSet::new(),
            ending: BTreeSet::new(),
            told_silence: false,
            active: false,
            next: Instant::now(),
        }
    }

    /// The client's job may have a limit that no job here had before.
    pub fn wake(&mut self) {
        if self.policy != MemoryOverLimit::Ignore && !self.gpus.is_empty() {
            let soon = Instant::now() + PERIOD;
            self.next = if self.active {
                self.next.min(soon)
            } else {
                soon
            };
            self.active = true;
        }
    }

    pub fn period(&self) -> Option<Duration> {
        self.active
            .then(|| self.next.saturating_duration_since(Instant::now()))
    }

    pub fn check(
        &mut self,
        spec: &Spec,
        nvml: impl FnOnce() -> Option<Nvml>,
        running: &[Running],
        observer: &mut Observer,
    ) {
        if !self.active || Instant::now() < self.next {
            return;
        }
        let jobs = JobLimits::read(spec);
        let limited =
            !self.limits.is_empty() || jobs.0.iter().any(|(_, limits, _)| !limits.is_empty());
        self.next = Instant::now() + if limited { PERIOD } else { REPORT_PERIOD };
        let nvml = nvml();
        let ask = |gpu: &GpuUuid| self.clients(gpu, spec.uid, nvml?, observer);
        let answers: Vec<Option<Vec<_>>> = self.gpus.iter().map(ask).collect();
        let is_silent = answers.contains(&None);
        let clients: Vec<_> = answers.into_iter().flatten().flatten().collect();
        if is_silent {
            self.next = Instant::now() + REPORT_PERIOD;
            if limited && !self.told_silence {
                self.told_silence = true;
                let line =
                    "NVML does not answer: until it does, the clients' memory is not watched";
                observer.log.line(line);
            }
        }
        self.active = !clients.is_empty() || is_silent && observer.clients() > 0;
        observer.take_memory(&clients);
        let limit = |pid, gpu: &GpuUuid| jobs.of(observer.job(pid), gpu);
        for (pid, gpu, held_mib, limit_mib) in self.over(&clients, limit) {
            if !self.told.insert((pid, gpu.clone())) {
                continue;
            }
            let client = observer.client(pid);
            observer.say(&format!(
                "{client} holds {held_mib} MiB on {gpu}, its limit is {limit_mib} MiB"
            ));
            let terminated = self.policy == MemoryOverLimit::Terminate;
            if terminated {
                self.ending.insert(pid);
                terminate(spec, running, pid, &mut observer.log);
            }
            let over = OverMemory {
                pid,
                held_mib,
                limit_mib,
                terminated,
            };
            keep(&mut observer.all.over_memory, over);
        }
        for pid in self.check_jobs(&jobs, &clients, observer) {
            terminate(spec, running, pid, &mut observer.log);
        }
    }

    /// Returns the clients to be ended: the youngest of a job that is over its limit and holds more
    /// than a context, one at a look, as that may be enough.
    fn check_jobs(
        &mut self,
        limits: &JobLimits,
        clients: &[ClientMemory],
        observer: &mut Observer,
    ) -> Vec<i32> {
        let is_there = |pid: &i32| clients.iter().any(|(one, ..)| one == pid);
        self.ending.retain(is_there);
        let jobs: BTreeSet<JobId> = limits.0.iter().map(|(member, ..)| member.whole()).collect();
        let gpus = self.gpus.clone();
        let each = jobs
            .iter()
            .flat_map(|job| gpus.iter().map(move |gpu| (job, gpu)));
        each.filter_map(|(job, gpu)| {
            let limit_mib = limits.together(job, gpu)?;
            let is_its = |(pid, on, _): &&ClientMemory| {
                on == gpu && observer.is_of_job(*pid, job) && !self.ending.contains(pid)
            };
            let mut its: Vec<_> = clients.iter().filter(is_its).collect();
            its.sort_by_key(|(pid, ..)| observer.age(*pid));
            let held_mib = its.iter().map(|(.., mib)| mib).sum();
            let beyond = |(.., mib): &ClientMemory| mib.saturating_sub(OVERHEAD_MIB);
            let is_over = its.iter().map(|one| beyond(one)).sum::<u64>() > limit_mib;
            let youngest = its.iter().rfind(|one| beyond(one) > 0);
            if !its.is_empty() {
                observer.all.take_job(job, gpu, [held_mib, limit_mib]);
            }
            let (pid, ..) = youngest.filter(|_| is_over)?;
            let ends = self.policy == MemoryOverLimit::Terminate;
            if self.told_jobs.insert((job.clone(), gpu.clone())) || ends {
                let end = ends.then(|| format!(": client {pid}, the youngest, is ended"));
                observer.say(&format!(
                    "the clients of job {job} hold {held_mib} MiB on {gpu}, their limit together is {limit_mib} MiB{}",
                    end.unwrap_or_default()
                ));
            }
            (ends && self.ending.insert(*pid)).then_some(*pid)
        })
        .collect()
    }

    /// Our daemons' logs do not name clients of the user's other jobs.
    fn clients(
        &self,
        gpu: &GpuUuid,
        uid: u32,
        nvml: Nvml,
        observer: &Observer,
    ) -> Option<Vec<ClientMemory>> {
        let processes = nvml.processes(gpu).ok()?.into_iter();
        let is_ours = |pid| is_of(uid, pid) && !observer.is_stranger(pid);
        let clients = processes.filter(|p| p.mps_client && is_ours(p.pid));
        let held = clients.map(|p| (p.pid, gpu.clone(), p.memory.unwrap_or(0) >> 20));
        Some(held.collect())
    }

    /// The clients over the limit of their job, or else over that of the daemons.
    fn over(
        &self,
        clients: &[ClientMemory],
        of_job: impl Fn(i32, &GpuUuid) -> Option<u64>,
    ) -> Vec<(i32, GpuUuid, u64, u64)> {
        let over = |(pid, gpu, mib): &ClientMemory| {
            let own = || self.limits.iter().find(|(limited, _)| limited == gpu);
            let limit = of_job(*pid, gpu).or_else(|| Some(own()?.1))?;
            (*mib > limit + OVERHEAD_MIB).then(|| (*pid, gpu.clone(), *mib, limit))
        };
        clients.iter().filter_map(over).collect()
    }
}

fn terminate(spec: &Spec, running: &[Running], client: i32, log: &mut UserLog) {
    for daemon in running {
        let say = |commands: &str| {
            session::say(&spec.control, &daemon.daemon, commands, spec.command_time())
        };
        let servers = say("get_server_list\n").map(|answer| answer.numbers());
        for server in servers.unwrap_or_default() {
            let clients = say(&format!("get_client_list {server}\n"));
            if clients.is_ok_and(|answer| answer.numbers().contains(&client)) {
                let done = say(&format!("terminate_client {server} {client}\n"));
                let how = done.map_or_else(|why| why, |_| "it gets error 810".to_owned());
                log.line(&format!(
                    "client {client} is over its memory limit: terminate_client, {how}"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::dialogue::Event;
    use mpsd_core::Paths;
    use mpsd_core::record::{Record, RecordState};
    use std::path::Path;

    fn watch(policy: &str, limit: Option<u64>) -> MemoryWatch {
        MemoryWatch::new(&spec(policy, limit))
    }

    fn spec(policy: &str, limit: Option<u64>) -> Spec {
        let memory: Vec<_> = limit.map(|limit| ("GPU-01", limit)).into_iter().collect();
        let spec = serde_json::json!({"job": "1", "uid": 0, "control": "/", "nvml": "", "daemons": [
            {"gpus": ["GPU-01"], "pipe": "", "log": "", "memory": memory}],
            "start_ms": 1, "command_ms": 1, "over_limit": policy});
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn a_silence_of_nvml_ends_no_watch_while_a_client_is_there() {
        let (spec, mut observer) = (spec("log", Some(4096)), Observer::default());
        let mut watch = MemoryWatch::new(&spec);
        let mut is_watched = |event: &Event| {
            observer.take(1, event);
            watch.wake();
            watch.next = Instant::now();
            watch.check(&spec, || None, &[], &mut observer);
            watch.period().is_some()
        };
        assert!(is_watched(&Event::Active(5)));
        assert!(!is_watched(&Event::Left(5)), "nobody is left");
    }

    #[test]
    fn a_client_is_over_by_more_than_its_context_explains() {
        let watch = watch("log", Some(4096));
        let gpu = GpuUuid::parse("GPU-01").unwrap();
        let clients = [(1, 4096), (2, 4096 + OVERHEAD_MIB), (3, 9000)];
        let clients = clients.map(|(pid, mib)| (pid, gpu.clone(), mib));
        assert_eq!(watch.over(&clients, |_, _| None), [(3, gpu, 9000, 4096)]);
    }

    #[test]
    fn a_client_of_a_shared_mps_has_the_limit_of_its_job_and_one_that_hides_the_highest() {
        let [gpu, other] = ["GPU-01", "GPU-02"].map(|gpu| GpuUuid::parse(gpu).unwrap());
        let sharer = |(job, ranks): (&str, &[u64])| {
            let ranks: Vec<_> = ranks.iter().map(|mib| vec![(gpu.clone(), *mib)]).collect();
            (JobId::parse(job).unwrap(), highest(&ranks), Vec::new())
        };
        let jobs = |all: &[(&str, &[u64])]| JobLimits(all.iter().copied().map(sharer).collect());
        let limited = jobs(&[("7", &[1024, 2048, 512]), ("8.0", &[4096])]);
        let of = |all: &JobLimits, job: &str, gpu| all.of(JobId::parse(job).ok().as_ref(), gpu);
        for job in ["8", "8.0", "9", "80", ""] {
            assert_eq!(of(&limited, job, &gpu), Some(4096), "{job}");
        }
        assert_eq!(of(&limited, "7", &gpu), Some(2048));
        assert_eq!(of(&limited, "7", &other), None);
        let with_open = jobs(&[("7", &[1024]), ("8", &[])]);
        let found = ["7", "8", ""].map(|job| of(&with_open, job, &gpu));
        assert_eq!(found, [Some(1024), None, None]);
        assert_eq!(JobLimits::default().of(None, &gpu), None);
    }

    #[test]
    fn a_job_whose_record_cannot_be_read_is_held_to_no_other_jobs_limit() {
        let run = tempfile::tempdir().unwrap();
        let gpu = GpuUuid::parse("GPU-01").unwrap();
        let id = JobId::shared(0, &gpu);
        let paths = Paths::new(run.path(), "");
        let put = |path: &Path, text: &str| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put(&paths.job(&id).sharers(), r#"["7","8"]"#);
        let job = |job: &str| JobId::parse(job).unwrap();
        let mut record = Record::without_mps(job("7"), 0, RecordState::Ready, String::new());
        record.rank_memory = vec![vec![(gpu.clone(), 1024)]];
        record.job_memory = vec![(gpu.clone(), 2048)];
        put(&paths.job(&job("7")).record(), &record.to_text().unwrap());
        put(&paths.job(&job("8")).record(), r#"{"version": 99}"#);
        let spec = Spec {
            job: id.clone(),
            run: run.path().into(),
            ..spec("terminate", None)
        };
        let limits = JobLimits::read(&spec);
        let of = ["7", "8"].map(|name| limits.of(Some(&job(name)), &gpu));
        assert_eq!(of, [Some(1024), None]);
        let together = ["7", "8"].map(|name| limits.together(&job(name), &gpu));
        assert_eq!(together, [Some(2048), None]);
        let own = Spec {
            job: job("7"),
            ..spec.clone()
        };
        let own = JobLimits::read(&own).together(&job("7"), &gpu);
        assert_eq!(own, Some(2048), "of a job with an MPS of its own");
        put(&paths.job(&id).sharers(), r#"["7","9"]"#);
        let of_hidden = JobLimits::read(&spec).of(None, &gpu);
        assert_eq!(of_hidden, Some(1024), "a job that has left lifts no limit");
    }

    const JOBS: [(i32, &str); 5] = [(1, "7"), (2, "7"), (3, "7"), (8, "8"), (9, "8")];

    /// Job 7's clients came in some order, and may hold 4096 MiB together.
    struct Together {
        watch: MemoryWatch,
        observer: Observer,
        limits: JobLimits,
    }

    impl Together {
        fn new(policy: &str, came: &[i32]) -> Self {
            let gpu = GpuUuid::parse("GPU-01").unwrap();
            let job = |name, all| (JobId::parse(name).unwrap(), Vec::new(), all);
            let mut observer = Observer::knowing(&JOBS);
            for pid in came {
                observer.take(1, &Event::Active(*pid));
            }
            Self {
                watch: watch(policy, None),
                observer,
                limits: JobLimits(vec![job("7", vec![(gpu, 4096)]), job("8", Vec::new())]),
            }
        }

        /// Which clients that hold this much are to end.
        fn look(&mut self, held: &[(i32, u64)]) -> Vec<i32> {
            let gpu = GpuUuid::parse("GPU-01").unwrap();
            let held = held.iter().map(|(pid, mib)| (*pid, gpu.clone(), *mib));
            let held: Vec<ClientMemory> = held.collect();
            self.watch
                .check_jobs(&self.limits, &held, &mut self.observer)
        }

        fn words(&self) -> &[String] {
            &self.observer.all.last_words
        }
    }

    #[test]
    fn of_a_jobs_clients_that_are_together_over_its_limit_the_youngest_goes() {
        let mut all = Together::new("terminate", &[1, 3, 2]);
        let held = [(1, 2000), (2, 2000), (3, 2000)];
        assert_eq!(all.look(&held), [2], "the youngest by its coming");
        assert_eq!(all.look(&held), [0; 0], "it goes, and the others fit");
        all.observer.take(1, &Event::Left(2));
        assert_eq!(all.look(&[(1, 2000), (3, 2000)]), [0; 0]);
        all.observer.take(1, &Event::Active(2));
        assert_eq!(all.look(&held), [2], "the next of that pid");
        assert_eq!(all.words().len(), 2, "{:?}", all.words());
        let words = "the clients of job 7 hold 6000 MiB on GPU-01, their limit together is 4096 MiB: client 2, the youngest, is ended";
        assert_eq!(all.words()[0], words);
        let seen = &all.observer.all;
        let (held, limit) = (seen.jobs[0].held_mib, seen.jobs[0].limit_mib);
        assert_eq!((held, limit), (6000, 4096));
    }

    #[test]
    fn clients_that_are_together_within_their_contexts_of_the_limit_are_left_alone() {
        let mut all = Together::new("terminate", &[1, 2, 3]);
        let most = 2048 + OVERHEAD_MIB;
        assert_eq!(all.look(&[(1, most), (2, most), (3, 400)]), [0; 0]);
        assert!(all.words().is_empty());
        assert_eq!(all.observer.all.jobs[0].held_mib, 2 * most + 400);
        assert_eq!(all.look(&[(1, most), (2, most + 1)]), [2]);
        // To end one that holds no more than a context brings nothing.
        let mut all = Together::new("terminate", &[1, 2, 3]);
        assert_eq!(all.look(&[(1, 2000), (2, 4000), (3, 400)]), [2]);
    }

    #[test]
    fn clients_of_another_job_of_none_and_of_no_server_of_ours_are_neither_counted_nor_ended() {
        let mut all = Together::new("terminate", &[1, 2, 8, 77, 9]);
        let others = [(8, 9000), (9, 9000), (77, 9000), (3, 9000)];
        let with = |own: u64| [&[(1, own), (2, own)][..], &others].concat();
        assert_eq!(all.look(&with(2000)), [0; 0]);
        assert_eq!(all.observer.all.jobs[0].held_mib, 4000);
        assert_eq!(all.look(&with(3000)), [2]);
        assert_eq!(all.observer.all.jobs.len(), 1, "job 8 has no limit");
    }

    #[test]
    fn where_the_site_only_logs_a_job_over_its_limit_is_told_once() {
        let mut all = Together::new("log", &[1, 2, 3]);
        for held in [3000, 3000, 100, 3500] {
            assert_eq!(all.look(&[1, 2, 3].map(|pid| (pid, held))), [0; 0]);
        }
        assert_eq!(
            all.words(),
            ["the clients of job 7 hold 9000 MiB on GPU-01, their limit together is 4096 MiB"]
        );
        assert_eq!(all.observer.all.jobs[0].held_mib, 10_500);
    }

    #[test]
    fn it_sleeps_until_a_client_comes_and_looks_soon_then_unless_it_is_switched_off() {
        for (policy, limit, wakes) in [
            ("ignore", Some(1), false),
            ("log", Some(1), true),
            ("log", None, true),
        ] {
            let is_soon = |period: Option<Duration>| period.is_some_and(|period| period <= PERIOD);
            let mut watch = watch(policy, limit);
            assert_eq!(watch.period(), None);
            watch.wake();
            assert_eq!(is_soon(watch.period()), wakes, "{policy}");
            // Whatever the period was.
            watch.next += REPORT_PERIOD;
            watch.wake();
            assert_eq!(is_soon(watch.period()), wakes, "{policy}");
            let soon = watch.next;
            watch.wake();
            assert_eq!(
                watch.next, soon,
                "clients that come and come put no look off"
            );
        }
    }
}
