//! Watches the memory of clients whose limit was asked for: a client can void the vendor's own limit
//! (`CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=garbage`; docs/facts/mps-control.md#memory-limits).

use super::session;
use super::sight::Sight;
use super::start::Running;
use super::user_log::UserLog;
use crate::job::spec::Spec;
use crate::node::nvml::Nvml;
use crate::sys::process::Process;
use mpsd_core::GpuUuid;
use mpsd_core::config::MemoryOverLimit;
use mpsd_core::observations::OverMemory;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How often the clients are looked at while there are any and one may exceed its limit; a look costs 0.1 ms a GPU (docs/facts/mps-control.md#nvml).
pub const PERIOD: Duration = Duration::from_secs(1);
/// How often where there is no limit, for the job's report.
pub const REPORT_PERIOD: Duration = Duration::from_secs(10);
/// What NVML counts for a client beyond what its limit counts: its context and code, MiB. An H200 showed up to 316 MiB
/// for a client that had allocated nothing (docs/facts/mps-control.md#nvml, 572 MiB with 256 MiB allocated).
const OVERHEAD_MIB: u64 = 512;
const MIB: u64 = 1 << 20;

/// The watch of one job.
#[derive(Debug)]
pub struct MemoryWatch {
    policy: MemoryOverLimit,
    library: String,
    limits: Vec<(GpuUuid, u64)>,
    /// What they are once no client is left that has the ones before.
    next_limits: Option<Vec<(GpuUuid, u64)>>,
    /// The job's user.
    uid: u32,
    /// The job's GPUs.
    gpus: Vec<GpuUuid>,
    nvml: Option<Nvml>,
    told: BTreeSet<(i32, GpuUuid)>,
    active: bool,
    /// When to look next.
    next: Instant,
}

impl MemoryWatch {
    /// The watch that `spec` asks for; switched off, it never wakes.
    pub fn new(spec: &Spec) -> Self {
        let limits = spec
            .daemons
            .iter()
            .flat_map(|daemon| daemon.memory.iter().cloned())
            .collect();
        Self {
            policy: spec.over_limit,
            library: spec.nvml.clone(),
            limits,
            next_limits: None,
            uid: spec.uid,
            gpus: spec
                .daemons
                .iter()
                .flat_map(|daemon| daemon.gpus.iter().cloned())
                .collect(),
            nvml: None,
            told: BTreeSet::new(),
            active: false,
            next: Instant::now(),
        }
    }

    /// A client has come: look from now on.
    pub fn wake(&mut self) {
        if !self.active && self.policy != MemoryOverLimit::Ignore && !self.gpus.is_empty() {
            self.active = true;
            self.next = Instant::now() + PERIOD;
        }
    }

    /// The limits were set anew, for clients that connect from now on. Those before keep theirs, so that until none is left the
    /// higher of both holds for all: nobody is ended for what he may hold.
    pub fn set(&mut self, running: &[Running]) {
        let all = running.iter().flat_map(|daemon| daemon.daemon.memory.iter());
        let now: Vec<(GpuUuid, u64)> = all.cloned().collect();
        if !self.active {
            self.limits = now;
            return;
        }
        for (gpu, limit) in &mut self.limits {
            let new = now.iter().find(|(uuid, _)| uuid == gpu);
            *limit = new.map_or(*limit, |(_, new)| *new.max(limit));
        }
        self.next_limits = Some(now);
    }

    /// How long to sleep; `None`: until something happens.
    pub fn period(&self) -> Option<Duration> {
        self.active
            .then(|| self.next.saturating_duration_since(Instant::now()))
    }

    /// Looks once; without a client left it goes to sleep.
    pub fn look(&mut self, spec: &Spec, running: &[Running], log: &mut UserLog, sight: &mut Sight) {
        if !self.active || Instant::now() < self.next {
            return;
        }
        let period = if self.limits.is_empty() {
            REPORT_PERIOD
        } else {
            PERIOD
        };
        self.next = Instant::now() + period;
        let Some(clients) = self.clients(sight) else {
            if !self.limits.is_empty() {
                log.line("NVML does not answer: the clients' memory is not watched");
            }
            self.policy = MemoryOverLimit::Ignore;
            self.active = false;
            return;
        };
        self.active = !clients.is_empty();
        if !self.active {
            self.limits = self
                .next_limits
                .take()
                .unwrap_or_else(|| std::mem::take(&mut self.limits));
        }
        sight.look(&clients);
        for over in self.over(&clients) {
            let (pid, gpu, mib, limit) = &over;
            if !self.told.insert((*pid, gpu.clone())) {
                continue;
            }
            let sentence = format!("client {pid} holds {mib} MiB on {gpu}, its limit is {limit} MiB");
            log.line(&sentence);
            sight.say(&sentence);
            let terminated = self.policy == MemoryOverLimit::Terminate;
            if terminated {
                terminate(spec, running, *pid, log);
            }
            sight.exceed(OverMemory {
                pid: *pid,
                held_mib: *mib,
                limit_mib: *limit,
                terminated,
            });
        }
    }

    /// The job's MPS clients on the watched GPUs: pid, GPU, memory in MiB. A GPU that is shared has other jobs' clients too: of the
    /// others of this user the daemons' logs know nothing.
    fn clients(&mut self, sight: &Sight) -> Option<Vec<(i32, GpuUuid, u64)>> {
        if self.nvml.is_none() {
            self.nvml = Nvml::load(&self.library).ok();
        }
        let nvml = self.nvml.as_ref()?;
        let mut all = Vec::new();
        for gpu in &self.gpus {
            let processes = nvml.processes(gpu).ok()?;
            let is_ours = |pid| is_of(self.uid, pid) && !sight.is_stranger(pid);
            let clients = processes.into_iter().filter(|p| p.mps_client && is_ours(p.pid));
            all.extend(clients.map(|p| (p.pid, gpu.clone(), p.memory.unwrap_or(0) / MIB)));
        }
        Some(all)
    }

    fn over(&self, clients: &[(i32, GpuUuid, u64)]) -> Vec<(i32, GpuUuid, u64, u64)> {
        let limit_of = |gpu: &GpuUuid| {
            self.limits
                .iter()
                .find(|(g, _)| g == gpu)
                .map(|(_, limit)| *limit)
        };
        clients
            .iter()
            .filter_map(|(pid, gpu, mib)| {
                let limit = limit_of(gpu)?;
                (*mib > limit + OVERHEAD_MIB).then(|| (*pid, gpu.clone(), *mib, limit))
            })
            .collect()
    }
}

/// Whether `pid` is a process of this user.
fn is_of(uid: u32, pid: i32) -> bool {
    let uids = Process::find(pid).and_then(|process| process.uids());
    uids.is_some_and(|uids| uids.effective == uid)
}

/// Says `terminate_client` to the daemon whose server has the client; the others answer that they do not know it.
fn terminate(spec: &Spec, running: &[Running], client: i32, log: &mut UserLog) {
    for daemon in running {
        let say = |commands: &str| session::say(&spec.control, &daemon.daemon, commands, spec.command_time());
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

    fn watch(policy: MemoryOverLimit, limit: Option<u64>) -> MemoryWatch {
        let gpu = GpuUuid::parse("GPU-01").unwrap();
        MemoryWatch {
            gpus: vec![gpu.clone()],
            next: Instant::now(),
            policy,
            uid: 0,
            library: String::new(),
            limits: limit.map(|l| (gpu, l)).into_iter().collect(),
            next_limits: None,
            nvml: None,
            told: BTreeSet::new(),
            active: false,
        }
    }

    #[test]
    fn only_what_no_context_explains_is_over() {
        let watch = watch(MemoryOverLimit::Log, Some(4096));
        let gpu = GpuUuid::parse("GPU-01").unwrap();
        let clients = [
            (1, gpu.clone(), 4096),
            (2, gpu.clone(), 4096 + OVERHEAD_MIB),
            (3, gpu.clone(), 9000),
        ];
        assert_eq!(watch.over(&clients), [(3, gpu, 9000, 4096)]);
    }

    #[test]
    fn it_sleeps_without_a_client_and_where_it_is_switched_off() {
        let mut asleep = watch(MemoryOverLimit::Ignore, Some(1));
        asleep.wake();
        assert_eq!(asleep.period(), None);
        for limit in [Some(1), None] {
            let mut awake = watch(MemoryOverLimit::Log, limit);
            assert_eq!(awake.period(), None);
            awake.wake();
            assert!(awake.period().is_some_and(|period| period <= PERIOD));
        }
    }
}
