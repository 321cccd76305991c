//! Whether a PBS has a job on a node: the mom's own file, else `qstat`.

use super::installation::{Installation, same_node};
use super::status::status;
use crate::scheduler::batch_system::Located as _;
use crate::scheduler::host::ThisHost;
use crate::scheduler::known_jobs::{JobState, KnownJobs};
use mpsd_core::JobId;
use mpsd_core::text::one_line;
use std::time::Duration;

/// A busy controller gets this for one answer.
const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// Torque's and OpenPBS's exit code for a job that the server does not know (recorded).
const UNKNOWN_JOB: i32 = 153;
/// Marks of a job that is in the server's books and on no node: completed, finished, queued, held, waiting, moved,
/// expired, begun array (the array itself, not one of its jobs).
const ON_NO_NODE: [&str; 8] = ["C", "F", "Q", "H", "W", "M", "X", "B"];

/// The jobs of one node.
pub(crate) struct Jobs {
    /// Its PBS.
    pub pbs: Installation,
    /// Its name there.
    pub node: String,
}

impl KnownJobs for Jobs {
    fn state_of(&self, job: &JobId) -> JobState {
        // The mom's own file of a job that it has; Torque's comes only after the prologue (recorded).
        if self.pbs.has_file_of(job) {
            return JobState::Here;
        }
        match self
            .pbs
            .run("qstat", &["-f", job.as_str()], CALL_DEADLINE, &ThisHost)
        {
            Ok(answer) => said(&self.node, answer.code, &answer.text),
            Err(why) => JobState::Undecided(why),
        }
    }
}

/// What `qstat -f JOB` says.
fn said(node: &str, code: Option<i32>, text: &str) -> JobState {
    // OpenPBS says so of a job that it keeps as history only.
    if code == Some(UNKNOWN_JOB) || text.contains("has finished") {
        return JobState::Gone("the server does not know it".to_owned());
    }
    let state = status(text, "job_state").filter(|_| code == Some(0));
    let Some(state) = state else {
        return JobState::Undecided(format!("qstat said: {}", one_line(text.trim(), 120)));
    };
    if ON_NO_NODE.contains(&state.as_str()) {
        return JobState::Gone(format!("it is in state {state}"));
    }
    let Some(hosts) = status(text, "exec_host") else {
        return JobState::Undecided(format!("in state {state}, and qstat names no exec_host"));
    };
    let is_here = |word: &str| same_node(word.split('/').next().unwrap_or(word), node);
    if hosts.split('+').any(is_here) {
        JobState::Here
    } else {
        JobState::Gone(format!("it is on {}", one_line(&hosts, 60)))
    }
}

#[cfg(test)]
mod tests {
    //! What qstat says, and what follows of it.

    use super::*;

    #[test]
    fn a_pbs_job_is_here_only_while_it_runs_here() {
        let text = |state: &str, hosts: &str| {
            format!("Job Id: 7.srv\n    job_state = {state}\n    exec_host = {hosts}\n")
        };
        let of = |state: &str, hosts: &str| said("n2", Some(0), &text(state, hosts));
        assert_eq!(of("R", "n1/0+n2/0*4"), JobState::Here);
        assert_eq!(of("E", "n2.cluster/0"), JobState::Here);
        assert!(matches!(of("R", "n1/0+n22/0"), JobState::Gone(_)));
        for state in ["C", "Q", "H", "F"] {
            assert!(matches!(of(state, "n2/0"), JobState::Gone(_)), "{state}");
        }
    }

    #[test]
    fn only_the_servers_own_word_lets_a_pbs_job_go() {
        let gone = |code, text: &str| matches!(said("n2", Some(code), text), JobState::Gone(_));
        assert!(gone(153, "qstat: Unknown Job Id 7.srv"));
        assert!(gone(
            35,
            "qstat: 7.srv Job has finished, use -x or -H to obtain historical job information"
        ));
        assert!(!gone(1, "qstat: cannot connect to server srv (errno=15010)"));
        assert!(!gone(0, "Job Id: 7.srv\n    job_state = R\n"));
        assert!(!gone(0, ""));
    }
}
