//! Sets other limits while the job runs, for its owner ([`super::door`]), within root's ceilings.
//! They hold for clients that connect later (docs/facts/mps-control.md#limits-of-a-running-server).
//! Each is read back.

use super::dialogue::{self, LimitScope};
use super::session;
use super::start::Running;
use crate::job::spec::{Spec, Unready};
use mpsd_core::GpuUuid;
use mpsd_core::observations::LimitSet;
use mpsd_core::record::{ClientLimits, Daemon};
use mpsd_sys::deadline::Deadline;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest time to set limits, half of [`super::door::TIME`]: `mpsd` watches nothing else
/// meanwhile.
const PATIENCE: Duration = Duration::from_secs(4);
const MOST_SERVERS: usize = 4;

/// Sets `wanted` on the daemons of its GPUs, all or none. Returns the changes for the report.
/// Refused: it is more than the job may have. Failed: a daemon did not do it, and all got their
/// earlier limits back.
pub fn set(
    spec: &Spec,
    running: &mut [Running],
    wanted: &ClientLimits,
) -> Result<Vec<LimitSet>, Unready> {
    allowed(spec, running, wanted)?;
    let end = Deadline::after(PATIENCE);
    let before: Vec<Daemon> = running.iter().map(|one| one.daemon.clone()).collect();
    for (place, daemon) in before.iter().enumerate() {
        if let Err(why) = tell(spec, &daemon.with(wanted), end) {
            let again = Deadline::after(PATIENCE);
            let told = before.iter().take(place + 1);
            told.for_each(|daemon| drop(tell(spec, &as_before(spec, daemon, wanted), again)));
            return Err(why.into());
        }
    }
    for one in running.iter_mut() {
        one.daemon = one.daemon.with(wanted);
    }
    Ok(changes(&before, wanted))
}

/// Undoes `wanted` at `daemon`. No command removes a limit. But a job without a limit has no
/// ceiling, so the highest value will do.
fn as_before(spec: &Spec, daemon: &Daemon, wanted: &ClientLimits) -> Daemon {
    let own = daemon.limits();
    let most = |(gpu, _): &(GpuUuid, u64)| Some((gpu.clone(), spec.most.memory_of(gpu)?));
    let limits = wanted.memory.iter();
    let unlimited = limits.filter(|(gpu, _)| own.memory_of(gpu).is_none());
    daemon.with(&ClientLimits {
        threads: own.threads.or(wanted.threads.and(spec.most.threads)),
        memory: unlimited.filter_map(most).collect(),
    })
}

/// The limits that all daemons of the job should have now, ended ones included.
pub fn limits(spec: &Spec, running: &[Running]) -> Vec<ClientLimits> {
    let now = |daemon: &Daemon| {
        let one = running.iter().find(|one| one.daemon.pipe == daemon.pipe);
        one.map_or(daemon, |one| &one.daemon).limits()
    };
    spec.daemons.iter().map(now).collect()
}

fn allowed(spec: &Spec, running: &[Running], wanted: &ClientLimits) -> Result<(), Unready> {
    let refuse = |what: String, why: &str, allowed: String| {
        let why = why.to_owned();
        Err(Unready::Refused { what, why, allowed })
    };
    // Every prologue that knows this protocol sends a ceiling for the threads.
    if spec.most.threads.is_none() {
        let why = "the release that started the job's MPS says no ceilings";
        return refuse("set".to_owned(), why, "a job that begins now".to_owned());
    }
    if let Some(threads) = wanted.threads {
        let what = format!("--threads {threads}");
        if spec
            .daemons
            .iter()
            .any(|daemon| !daemon.partitions.is_empty())
        {
            let why = "the job's ranks have multiprocessors of their own (MPS_SMS), and NVIDIA's daemon ignores percentages then";
            return refuse(what, why, "--mem".to_owned());
        }
        if let Some(most) = spec.most.threads.filter(|most| threads > *most) {
            let why = "it is above this site's ceiling";
            return refuse(what, why, format!("1 to {most}"));
        }
    }
    for (gpu, mib) in &wanted.memory {
        let what = format!("--mem {gpu}={mib}M");
        match spec.most.memory_of(gpu) {
            None => {
                return refuse(
                    what,
                    "the job has no such GPU here",
                    "its own GPUs".to_owned(),
                );
            }
            Some(most) if *mib > most => {
                let why = "it is more than this site's ceiling, or than the GPU has";
                return refuse(what, why, format!("at most {most}M"));
            }
            Some(_) if running.iter().all(|one| !one.daemon.gpus.contains(gpu)) => {
                return Err(format!("the control daemon of {gpu} has ended").into());
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn tell(spec: &Spec, daemon: &Daemon, end: Deadline) -> Result<(), String> {
    let limit = || spec.command_time().min(end.remaining());
    let say = |commands: &str| match session::say(&spec.control, daemon, commands, limit()) {
        Ok(answer) if answer.nobody_listens() => Err("the control daemon has ended".to_owned()),
        answer => answer,
    };
    let told = |scope: LimitScope| {
        dialogue::check(scope, daemon, &say(&dialogue::set(scope, daemon))?.text)
    };
    told(LimitScope::NextServers)?;
    // This list comes later, because a server that starts in between has the new limits.
    let servers = say("get_server_list\n")?.numbers();
    let mut servers = servers.into_iter().take(MOST_SERVERS);
    servers.try_for_each(|pid| told(LimitScope::Server(pid)))
}

fn changes(before: &[Daemon], wanted: &ClientLimits) -> Vec<LimitSet> {
    let at = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let set = |limit: String, from: Option<String>, to: String| LimitSet {
        limit,
        from,
        to,
        at: at.as_secs(),
    };
    let threads = wanted.threads.map(|to| {
        let from = before.iter().filter_map(|daemon| daemon.threads).max();
        let limit = LimitSet::THREADS.to_owned();
        set(limit, from.map(|from| from.to_string()), to.to_string())
    });
    let memory = wanted.memory.iter().map(|(gpu, to)| {
        let from = before
            .iter()
            .find_map(|daemon| daemon.limits().memory_of(gpu));
        let limit = format!("{}{gpu}", LimitSet::MEMORY);
        set(limit, from.map(|from| format!("{from}M")), format!("{to}M"))
    });
    let all = threads.into_iter().chain(memory);
    all.filter(|set| set.from.as_ref() != Some(&set.to))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The specification of a release before `mpsctl set`.
    const EARLIER: &str = r#"{"job": "1.srv", "uid": 1, "control": "/c", "nvml": "/n", "daemons": [], "start_ms": 1, "command_ms": 1,
    "over_limit": "log"}"#;

    #[test]
    fn without_a_ceiling_from_root_nothing_is_set() {
        let wanted = ClientLimits {
            threads: "100".parse().ok(),
            memory: Vec::new(),
        };
        let mut spec: Spec = serde_json::from_str(EARLIER).unwrap();
        let refused = set(&spec, &mut [], &wanted);
        assert!(
            refused
                .unwrap_err()
                .to_string()
                .contains("says no ceilings")
        );
        spec.most.threads = "100".parse().ok();
        assert_eq!(set(&spec, &mut [], &wanted).map(|set| set.len()), Ok(1));
        spec.most.threads = "50".parse().ok();
        assert!(set(&spec, &mut [], &wanted).is_err());
    }
}
