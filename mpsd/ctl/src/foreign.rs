//! MPS daemons of the node that no job of mpsd has: a service of root's, or a user's own. The kernel
//! alone tells of them: nothing connects to one.

use super::this_node;
use mpsd::job::store::Store as _;
use mpsd::node::controls::{ControlDaemon, control_daemons};
use mpsd_core::JobId;
use mpsd_core::config::Settings;
use mpsd_core::text::one_line;
use setup::CheckLine::{self, Fail, Warn};
use std::collections::BTreeSet;

/// A GPU in mode EXCLUSIVE_PROCESS, and the processes on it.
pub(super) type Held = (u32, Vec<i32>);

/// Control daemons outside all jobs, of users who have no MPS of ours.
pub(super) fn daemons(settings: &Settings) -> Vec<ControlDaemon> {
    let users = users_with_mps(settings);
    let mut found = control_daemons(|uid| !users.contains(&uid));
    found.retain(|daemon| !daemon.is_of_job);
    found
}

fn users_with_mps(settings: &Settings) -> BTreeSet<u32> {
    let mut node = this_node(settings);
    let names = node.job_directories().unwrap_or_default().into_iter();
    let jobs = names.filter_map(|name| JobId::parse(&name).ok());
    jobs.filter_map(|job| Some(node.read_journal(&job).ok()??.uid()))
        .collect()
}

/// Only root's own daemon can fail the node.
pub(super) fn line(daemon: &ControlDaemon, held: &[Held]) -> CheckLine {
    let processes = &daemon.processes;
    // NVIDIA's own, for a daemon without the variable.
    let pipe = daemon.pipe.as_deref().unwrap_or("/tmp/nvidia-mps".as_ref());
    let pipe = one_line(&pipe.to_string_lossy(), 100);
    let (whose, remedy) = match daemon.uid {
        0 => (
            "root".to_owned(),
            "stop the service that starts it (nvidia-mps.service?)",
        ),
        uid => (format!("uid {uid}"), "end it"),
    };
    let pid = processes.first().copied().unwrap_or_default();
    let who = format!(
        "an MPS daemon of {whose} that is no job's (process {pid}, pipe directory '{pipe}')"
    );
    let its = held.iter().find_map(|(gpu, pids)| {
        let holder = pids.iter().find(|pid| processes.contains(pid))?;
        Some(format!(
            "{who} holds GPU {gpu}, whose mode is EXCLUSIVE_PROCESS (process {holder}): no job's MPS starts there; {remedy}, or set \
             the mode to DEFAULT"
        ))
    });
    match its {
        Some(text) if daemon.uid == 0 => Fail(text),
        Some(text) => Warn(text),
        None => Warn(format!(
            "{who}: jobs with MPS do not use it; programs of other jobs that find its directory run under it, without limits; if \
             nobody needs it, {remedy}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_gpu_that_roots_daemon_holds_alone_fails_the_node() {
        for (uid, held, mark, who) in [
            (0, &[][..], "WARN", "root"),
            (0, &[(1, vec![6, 9])], "WARN", "root"),
            (0, &[(0, vec![]), (1, vec![6, 8])], "FAIL", "root"),
            // A health check drains for FAIL.
            (1001, &[(1, vec![8])], "WARN", "uid 1001"),
        ] {
            let daemon = ControlDaemon {
                uid,
                pipe: None,
                is_of_job: false,
                processes: vec![7, 8],
            };
            let told = line(&daemon, held).to_string();
            let expected = format!("{mark}  an MPS daemon of {who} ");
            assert!(told.starts_with(&expected), "{told}");
            let holds = held.iter().any(|(_, pids)| pids.contains(&8));
            assert_eq!(told.contains("holds GPU 1,"), holds, "{told}");
        }
    }
}
