//! MPS daemons of the node that no job of mpsd has: a service of root's, or a user's own. The kernel
//! alone tells of them: nothing connects to one.

use super::this_node;
use mpsd::job::store::Store as _;
use mpsd::node::controls::control_daemons;
use mpsd_core::JobId;
use mpsd_core::config::Settings;
use mpsd_core::text::one_line;
use setup::CheckLine::{self, Fail, Warn};
use std::collections::BTreeSet;

/// NVIDIA's own, for a daemon without the variable.
const USUAL: &str = "/tmp/nvidia-mps";

/// A control daemon with its servers.
#[derive(Debug)]
pub(super) struct Foreign {
    uid: u32,
    pipe: String,
    /// The daemon comes first.
    processes: Vec<i32>,
}

/// A GPU in mode EXCLUSIVE_PROCESS, and the processes on it.
pub(super) type Held = (u32, Vec<i32>);

/// The control daemons that neither a job nor mpsd started. A user who has an MPS of ours is left
/// out.
pub(super) fn daemons(settings: &Settings) -> Vec<Foreign> {
    let users = users_with_mps(settings);
    let others = control_daemons(|uid| !users.contains(&uid)).into_iter();
    let found = others.filter_map(|daemon| {
        let pipe = daemon.pipe.unwrap_or_else(|| USUAL.into());
        (!daemon.is_of_job).then(|| Foreign {
            uid: daemon.uid,
            pipe: one_line(&pipe.to_string_lossy(), 100),
            processes: daemon.processes,
        })
    });
    found.collect()
}

fn users_with_mps(settings: &Settings) -> BTreeSet<u32> {
    let mut node = this_node(settings);
    let names = node.job_directories().unwrap_or_default().into_iter();
    let jobs = names.filter_map(|name| JobId::parse(&name).ok());
    jobs.filter_map(|job| Some(node.read_journal(&job).ok()??.uid()))
        .collect()
}

/// A line for each. Only root's own can fail the node.
pub(super) fn lines(daemons: &[Foreign], held: &[Held]) -> Vec<CheckLine> {
    daemons.iter().map(|daemon| line(daemon, held)).collect()
}

fn line(daemon: &Foreign, held: &[Held]) -> CheckLine {
    let Foreign {
        uid,
        pipe,
        processes,
    } = daemon;
    let (whose, remedy) = match uid {
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
        Some(text) if *uid == 0 => Fail(text),
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
        let daemon = |uid| Foreign {
            uid,
            pipe: USUAL.to_owned(),
            processes: vec![7, 8],
        };
        let of = |uid, held: &[Held]| lines(&[daemon(uid)], held).remove(0);
        for (uid, held, mark, who) in [
            (0, &[][..], "WARN", "root"),
            (0, &[(1, vec![6, 9])], "WARN", "root"),
            (0, &[(0, vec![]), (1, vec![6, 8])], "FAIL", "root"),
            // A health check drains for FAIL.
            (1001, &[(1, vec![8])], "WARN", "uid 1001"),
        ] {
            let told = of(uid, held).to_string();
            let expected = format!("{mark}  an MPS daemon of {who} ");
            assert!(told.starts_with(&expected), "{told}");
            let holds = held.iter().any(|(_, pids)| pids.contains(&8));
            assert_eq!(told.contains("holds GPU 1,"), holds, "{told}");
        }
    }
}
