//! A PBS on this node as the suite asks it: its jobs by the mom's own files and `qstat`, its node by `pbsnodes`.

use super::control::{LONGEST_REASON, PbsNode};
use super::installation::{Installation, attribute, same_node};
use crate::scheduler::batch_system::Located;
use crate::scheduler::control::{Controller, JobState, KnownJobs};
use crate::scheduler::host::ThisHost;
use mpsd_core::JobId;
use mpsd_core::text::one_line;
use std::time::Duration;

/// A busy controller gets this for one answer.
const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// Torque's and OpenPBS's exit code for a job that the server does not know (recorded).
const UNKNOWN_JOB: i32 = 153;
/// States of a job that is on no node: completed, finished, queued, held, waiting, moved, expired, begun array (the array
/// itself, not one of its jobs).
const ON_NO_NODE: [&str; 8] = ["C", "F", "Q", "H", "W", "M", "X", "B"];

impl Located for Installation {
    /// The ids of a PBS have a server's name in them.
    fn may_own(&self, job: &JobId) -> bool {
        self.is_here() && job.as_str().contains(|c: char| !c.is_ascii_digit() && c != '.')
    }

    /// Torque's file of the subjob `57[1].srv` is `57-1.srv.JB`.
    fn has_file_of(&self, job: &JobId) -> bool {
        let torques = job.as_str().replace('[', "-").replace(']', "");
        let torques = self.job_file(job).with_file_name(format!("{torques}.JB"));
        let mut files = [self.job_file(job), torques].into_iter();
        files.any(|file| file.symlink_metadata().is_ok())
    }

    fn known_jobs(&self, node: &str) -> Box<dyn KnownJobs> {
        Box::new(PbsJobs {
            pbs: self.clone(),
            node: node.to_owned(),
        })
    }

    fn controller(&self, node: &str) -> Box<dyn Controller> {
        Box::new(PbsNode::new(self.clone(), node, &ThisHost))
    }

    fn longest_reason(&self) -> usize {
        LONGEST_REASON
    }
}

/// The jobs of one node.
struct PbsJobs {
    pbs: Installation,
    node: String,
}

impl KnownJobs for PbsJobs {
    fn state_of(&self, job: &JobId) -> JobState {
        // Torque's mom makes its file only after the prologue (recorded).
        if self.pbs.has_file_of(job) {
            return JobState::Here;
        }
        let words = ["-f", job.as_str()];
        match self.pbs.run("qstat", &words, CALL_DEADLINE, &ThisHost) {
            Ok(answer) => job_state(&self.node, answer.code, &answer.text),
            Err(why) => JobState::Undecided(why),
        }
    }
}

/// What `qstat -f JOB` says.
fn job_state(node: &str, code: Option<i32>, text: &str) -> JobState {
    // OpenPBS says "has finished" of a job that it keeps as history only.
    if code == Some(UNKNOWN_JOB) || text.contains("has finished") {
        return JobState::Gone("the server does not know it".to_owned());
    }
    let Some(state) = attribute(text, "job_state").filter(|_| code == Some(0)) else {
        return JobState::Undecided(format!("qstat said: {}", one_line(text.trim(), 120)));
    };
    if ON_NO_NODE.contains(&state.as_str()) {
        return JobState::Gone(format!("it is in state {state}"));
    }
    let Some(hosts) = attribute(text, "exec_host") else {
        return JobState::Undecided(format!("in state {state}, and qstat names no exec_host"));
    };
    let is_here = |word: &str| same_node(word.split('/').next().unwrap_or(word), node);
    match hosts.split('+').any(is_here) {
        true => JobState::Here,
        false => JobState::Gone(format!("it is on {}", one_line(&hosts, 60))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_here_while_it_runs_here_and_gone_only_by_the_servers_word() {
        let text = |state: &str, hosts: &str| {
            format!("Job Id: 7.srv\n    job_state = {state}\n    exec_host = {hosts}\n")
        };
        let of = |state: &str, hosts: &str| job_state("n2", Some(0), &text(state, hosts));
        assert_eq!(of("R", "n1/0+n2/0*4"), JobState::Here);
        assert_eq!(of("E", "n2.cluster/0"), JobState::Here);
        assert!(matches!(of("R", "n1/0+n22/0"), JobState::Gone(_)));
        for state in ["C", "Q", "H", "F"] {
            assert!(matches!(of(state, "n2/0"), JobState::Gone(_)), "{state}");
        }
        for (code, text, gone) in [
            (153, "qstat: Unknown Job Id 7.srv", true),
            (
                35,
                "qstat: 7.srv Job has finished, use -x or -H to obtain historical job information",
                true,
            ),
            (1, "qstat: cannot connect to server srv (errno=15010)", false),
            (0, "Job Id: 7.srv\n    job_state = R\n", false),
            (0, "", false),
        ] {
            let state = job_state("n2", Some(code), text);
            assert_eq!(matches!(state, JobState::Gone(_)), gone, "{text}");
        }
    }
}
