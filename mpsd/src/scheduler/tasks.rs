//! Tasks that TM starts (`pbsdsh`, an MPI launcher): they read no profile, so what attaches them to their job's MPS is
//! OpenPBS's hook on execjob_launch or Torque's `$job_starter` (facts: pbs-live, "Environment into the job").

use super::pbs::{Installation, MOST_CONF};
use super::{Host, Input, Scheduler, Submission, openpbs};
use std::path::{Path, PathBuf};

/// What makes a starter one of ours: the shipped one, or a site's own that goes through `mpsctl exec`.
const OURS: [&str; 2] = ["mpsctl exec", "mpsd/job-starter"];
/// A starter is a script of some lines. Bytes.
const MOST_STARTER: usize = 64 << 10;

/// Why a task of a job could run outside its MPS without a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unattached {
    /// What is missing.
    pub why: String,
    /// What an administrator does about it.
    pub mend: String,
    /// Nothing that the user does attaches them: their nodes have no daemon, or the starter lets no task run.
    pub hopeless: bool,
}

/// What a Torque mom's `$job_starter` is; the last line of its configuration counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Starter {
    /// There is none: the mom executes tasks itself.
    Absent,
    /// Tasks go through `mpsctl exec`.
    Ours(PathBuf),
    /// It is the site's own and does not call us, or is not there.
    Foreign(PathBuf),
    /// `$job_starter_run_privileged`: it would run every task as root.
    Privileged(PathBuf),
}

impl Starter {
    /// The starter of the mom of `pbs`.
    pub fn of(pbs: &Installation, host: &dyn Host) -> Self {
        let text = host
            .read(&pbs.mom_config(), MOST_CONF)
            .ok()
            .flatten()
            .unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let Some(path) = last_value(&text, "$job_starter").map(PathBuf::from) else {
            return Self::Absent;
        };
        if !is_ours(&path, host) {
            return Self::Foreign(path);
        }
        match last_value(&text, "$job_starter_run_privileged") {
            Some(word) if !is_no(word) => Self::Privileged(path),
            _ => Self::Ours(path),
        }
    }
}

/// The first word after the last `name` of a mom's configuration.
pub(super) fn last_value<'t>(config: &'t str, name: &str) -> Option<&'t str> {
    config.lines().rev().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(name)).then(|| words.next()).flatten()
    })
}

/// What surely means no: in doubt the starter would run as root.
fn is_no(word: &str) -> bool {
    ["false", "f", "no", "n", "off", "0"]
        .iter()
        .any(|no| no.eq_ignore_ascii_case(word))
}

fn is_ours(path: &Path, host: &dyn Host) -> bool {
    let text = host.read(path, MOST_STARTER).ok().flatten().unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    host.executable(path) && OURS.iter().any(|call| text.contains(call))
}

/// Why tasks of this job that TM starts cannot be attached; `None`: they are. For a job that asked for MPS only.
pub fn unattached(submission: &Submission, input: &Input<'_>, host: &dyn Host) -> Option<Unattached> {
    match submission.scheduler {
        Scheduler::Slurm => None,
        Scheduler::Torque => under_torque(&Installation::find(Scheduler::Torque, &input.site, host), host),
        Scheduler::OpenPbs if openpbs::is_hooked(input) => None,
        Scheduler::OpenPbs => Some(under_classic_scripts(openpbs::nodes(
            &submission.job,
            input,
            host,
        ))),
    }
}

fn under_torque(pbs: &Installation, host: &dyn Host) -> Option<Unattached> {
    // Somebody runs the prologue by hand: only a mom starts tasks for TM.
    if !pbs.mom_priv().is_dir() {
        return None;
    }
    let config = pbs.mom_config();
    let (config, install) = (config.display(), "'mpsctl pbs install' on the node");
    let starter = Starter::of(pbs, host);
    let hopeless = matches!(starter, Starter::Privileged(_));
    let (why, mend) = match starter {
        Starter::Ours(_) => return None,
        Starter::Absent => (
            format!("'{config}' has no $job_starter that attaches tasks started by TM"),
            install.to_owned(),
        ),
        Starter::Foreign(path) => (
            format!(
                "the $job_starter '{}' of '{config}' does not attach tasks started by TM",
                path.display()
            ),
            format!("{install}, which says how to add ours"),
        ),
        Starter::Privileged(_) => (
            format!(
                "'{config}' has $job_starter_run_privileged, and our starter runs as the job's user only"
            ),
            "that line is taken out".to_owned(),
        ),
    };
    Some(Unattached { why, mend, hopeless })
}

fn under_classic_scripts(nodes: usize) -> Unattached {
    let hook = "the hook ('mpsctl pbs install')".to_owned();
    if nodes > 1 {
        let why = format!("it has {nodes} nodes, and OpenPBS runs its classic prologue on the first only");
        return Unattached {
            why,
            mend: hook,
            hopeless: true,
        };
    }
    Unattached {
        why: "OpenPBS's classic scripts do not attach tasks started by TM".to_owned(),
        mend: hook,
        hopeless: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_of_the_configuration_counts() {
        let config =
            "$job_starter /a\n# $job_starter /b\n\t$job_starter /c d\n$job_starter_run_privileged True\n";
        assert_eq!(last_value(config, "$job_starter"), Some("/c"));
        assert_eq!(last_value(config, "$job_starter_run_privileged"), Some("True"));
        assert_eq!(last_value("$job_starter\n", "$job_starter"), None);
        assert!(is_no("False") && is_no("0") && !is_no("true") && !is_no("on"));
    }

    #[test]
    fn several_nodes_under_the_classic_scripts_have_no_daemon() {
        assert!(under_classic_scripts(2).hopeless && !under_classic_scripts(1).hopeless);
        assert!(under_classic_scripts(2).why.contains("it has 2 nodes"));
    }
}
