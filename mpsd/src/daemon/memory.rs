//! Watches the memory of clients with a limit, because a client can void NVIDIA's (docs/facts/mps-control.md#memory-limits).

use super::logs::UserLog;
use super::observer::Observer;
use super::session;
use super::start::Running;
use crate::job::spec::Spec;
use crate::node::nvml::Nvml;
use crate::sys::process::Process;
use mpsd_core::GpuUuid;
use mpsd_core::config::MemoryOverLimit;
use mpsd_core::observations::{OverMemory, keep};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Time between two checks while a client may exceed its limit; one costs 0.1 ms a GPU (docs/facts/mps-control.md#nvml).
const PERIOD: Duration = Duration::from_secs(1);
const REPORT_PERIOD: Duration = Duration::from_secs(10);
/// What NVML counts beyond the limit: context and code, MiB. Up to 316 MiB on an H200 (docs/facts/mps-control.md#nvml).
const OVERHEAD_MIB: u64 = 512;

#[derive(Debug)]
pub struct MemoryWatch {
    policy: MemoryOverLimit,
    limits: Vec<(GpuUuid, u64)>,
    /// The limits once no client is left from before they were set.
    next_limits: Option<Vec<(GpuUuid, u64)>>,
    gpus: Vec<GpuUuid>,
    told: BTreeSet<(i32, GpuUuid)>,
    active: bool,
    next: Instant,
}

impl MemoryWatch {
    pub fn new(spec: &Spec) -> Self {
        let daemons = || spec.daemons.iter();
        Self {
            policy: spec.over_limit,
            limits: daemons().flat_map(|daemon| daemon.memory.clone()).collect(),
            next_limits: None,
            gpus: daemons().flat_map(|daemon| daemon.gpus.clone()).collect(),
            told: BTreeSet::new(),
            active: false,
            next: Instant::now(),
        }
    }

    pub fn wake(&mut self) {
        if !self.active && self.policy != MemoryOverLimit::Ignore && !self.gpus.is_empty() {
            self.active = true;
            self.next = Instant::now() + PERIOD;
        }
    }

    /// Takes the new limits of clients that connect later. Until no earlier client is left, the higher limit holds for all.
    pub fn set(&mut self, running: &[Running]) {
        let all = running.iter().flat_map(|daemon| daemon.daemon.memory.clone());
        let now: Vec<(GpuUuid, u64)> = all.collect();
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

    pub fn period(&self) -> Option<Duration> {
        self.active
            .then(|| self.next.saturating_duration_since(Instant::now()))
    }

    /// `nvml`: `None` if it cannot be asked.
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
        let limited = !self.limits.is_empty();
        self.next = Instant::now() + if limited { PERIOD } else { REPORT_PERIOD };
        let Some(clients) = nvml().and_then(|nvml| self.clients(spec.uid, &nvml, observer)) else {
            if limited {
                observer
                    .log
                    .line("NVML does not answer: the clients' memory is not watched");
            }
            self.policy = MemoryOverLimit::Ignore;
            self.active = false;
            return;
        };
        self.active = !clients.is_empty();
        if !self.active
            && let Some(next) = self.next_limits.take()
        {
            self.limits = next;
        }
        observer.take_memory(&clients);
        for (pid, gpu, held_mib, limit_mib) in self.over(&clients) {
            if !self.told.insert((pid, gpu.clone())) {
                continue;
            }
            observer.say(&format!(
                "client {pid} holds {held_mib} MiB on {gpu}, its limit is {limit_mib} MiB"
            ));
            let terminated = self.policy == MemoryOverLimit::Terminate;
            if terminated {
                terminate(spec, running, pid, &mut observer.log);
            }
            let list = &mut observer.all.over_memory;
            keep(
                list,
                OverMemory {
                    pid,
                    held_mib,
                    limit_mib,
                    terminated,
                },
            );
        }
    }

    /// The job's clients: pid, GPU, MiB. Our daemons' logs do not name clients of the user's other jobs.
    fn clients(&self, uid: u32, nvml: &Nvml, observer: &Observer) -> Option<Vec<(i32, GpuUuid, u64)>> {
        let mut all = Vec::new();
        for gpu in &self.gpus {
            let processes = nvml.processes(gpu).ok()?;
            let is_ours = |pid| is_of(uid, pid) && !observer.is_stranger(pid);
            let clients = processes.into_iter().filter(|p| p.mps_client && is_ours(p.pid));
            all.extend(clients.map(|p| (p.pid, gpu.clone(), p.memory.unwrap_or(0) >> 20)));
        }
        Some(all)
    }

    fn over(&self, clients: &[(i32, GpuUuid, u64)]) -> Vec<(i32, GpuUuid, u64, u64)> {
        let over = |(pid, gpu, mib): &(i32, GpuUuid, u64)| {
            let (_, limit) = self.limits.iter().find(|(limited, _)| limited == gpu)?;
            (*mib > limit + OVERHEAD_MIB).then(|| (*pid, gpu.clone(), *mib, *limit))
        };
        clients.iter().filter_map(over).collect()
    }
}

fn is_of(uid: u32, pid: i32) -> bool {
    let uids = Process::find(pid).and_then(|process| process.uids());
    uids.is_some_and(|uids| uids.effective == uid)
}

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

    fn watch(policy: &str, limit: Option<u64>) -> MemoryWatch {
        let memory: Vec<_> = limit.map(|limit| ("GPU-01", limit)).into_iter().collect();
        let daemon = serde_json::json!({"gpus": ["GPU-01"], "pipe": "", "log": "", "memory": memory});
        let spec = serde_json::json!({"job": "1", "uid": 0, "control": "/", "nvml": "", "daemons": [daemon],
            "start_ms": 1, "command_ms": 1, "over_limit": policy});
        MemoryWatch::new(&serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn a_client_is_over_by_more_than_its_context_explains() {
        let watch = watch("log", Some(4096));
        let gpu = GpuUuid::parse("GPU-01").unwrap();
        let clients = [(1, 4096), (2, 4096 + OVERHEAD_MIB), (3, 9000)];
        let clients = clients.map(|(pid, mib)| (pid, gpu.clone(), mib));
        assert_eq!(watch.over(&clients), [(3, gpu, 9000, 4096)]);
    }

    #[test]
    fn it_sleeps_without_a_client_and_if_it_is_switched_off() {
        for (policy, limit, wakes) in [
            ("ignore", Some(1), false),
            ("log", Some(1), true),
            ("log", None, true),
        ] {
            let mut watch = watch(policy, limit);
            assert_eq!(watch.period(), None);
            watch.wake();
            assert_eq!(
                watch.period().is_some_and(|period| period <= PERIOD),
                wakes,
                "{policy}"
            );
        }
    }
}
