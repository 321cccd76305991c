//! What waits for the administrator on this node, under any scheduler. Every scheduler's `check` shows it.

use crate::job::ledger::{self, Ledger, PAUSE_S, SeveralFailed, Suspicion};
use crate::job::node::Console as _;
use crate::node::real::RealNode;
use crate::scheduler::setup::CheckLine::{self, Fail, Warn};
use mpsd_core::config::Settings;
use mpsd_core::text;
use std::time::Duration;
use users::os::unix::GroupExt as _;

/// By then the timer, the end of a job or a prologue should have taken the second look, seconds.
const OVERDUE_S: u64 = 5 * PAUSE_S;

/// All of it that this user may know.
pub(super) fn waiting(settings: &Settings) -> Vec<CheckLine> {
    let limit = settings.deadline;
    let mut node = RealNode::new(super::NAME, settings, limit, limit / 2);
    let now = node.since_boot();
    let suspicions = Ledger::read(&mut node).suspicions;
    let mut all: Vec<CheckLine> = suspicions.iter().map(|one| suspicion(one, now)).collect();
    if all.is_empty() && settings.paths.look_again().symlink_metadata().is_ok() {
        let text = "something hung in the driver and waits for its second look: root is told what ('mpsctl reconcile --dry-run')";
        all.push(Warn(text.to_owned()));
    }
    let several = ledger::several_failed(&mut node);
    all.extend(several.map(|several| failed(&several)));
    all.extend(group(settings.daemon_group));
    all
}

fn suspicion(suspicion: &Suspicion, now: u64) -> CheckLine {
    let age = now.saturating_sub(suspicion.since);
    let (job, what, ago) = (
        &suspicion.target.job,
        &suspicion.what,
        ago(Duration::from_secs(age)),
    );
    let text = format!(
        "job {job}: {ago} {what} hung in the driver, and the node takes no job with MPS before it was looked at again"
    );
    match age < OVERDUE_S {
        true => Warn(format!("{text}, {PAUSE_S} s after")),
        false => Fail(format!(
            "{text}, which nobody did: run 'mpsctl reconcile' as root, and let mpsd-reconcile.timer or cron do so"
        )),
    }
}

fn failed(several: &SeveralFailed) -> CheckLine {
    let SeveralFailed { users, job, age } = several;
    Warn(format!(
        "starts of {users} users failed on this node, the last one of job {job} {}, and none has worked since: the node's log \
         says why; 'srun --mps mps-probe --require-mps', or the same by qsub, tries one",
        ago(*age)
    ))
}

/// Users in the daemons' group can debug the daemons.
fn group(id: u32) -> Option<CheckLine> {
    let group = users::get_group_by_gid(id).filter(|_| id != 0)?;
    let members: Vec<_> = group
        .members()
        .iter()
        .map(|name| text::user(name.to_string_lossy()))
        .collect();
    let (name, list) = (group.name().to_string_lossy(), members.join(", "));
    let members = if list.is_empty() {
        list
    } else {
        format!(" ({list})")
    };
    Some(Warn(format!(
        "daemon_group {id} is this node's group '{name}': whoever is in it{members} can take over the daemons of their jobs, \
         which are outside of the jobs' limits; name one in mpsd.toml that nobody is in"
    )))
}

/// `40 s ago`, `12 min ago`.
fn ago(age: Duration) -> String {
    match age.as_secs() {
        s if s < 120 => format!("{s} s ago"),
        s if s < 2 * 3600 => format!("{} min ago", s / 60),
        s => format!("{} h ago", s / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::DrainTarget;
    use crate::job::ledger::Suspect;
    use mpsd_core::{JobId, Scheduler};

    fn hung(since: u64) -> Suspicion {
        Suspicion {
            suspect: Suspect::Nvml,
            what: "NVML".to_owned(),
            since,
            target: DrainTarget {
                job: JobId::parse("4711").unwrap(),
                scheduler: Scheduler::Slurm,
                node: "gpu1".to_owned(),
                uid: 1001,
                prefix: None,
                slurm_conf: None,
                gpus: Vec::new(),
            },
        }
    }

    #[test]
    fn a_second_look_is_waited_for_and_fails_if_it_is_overdue() {
        for (now, words) in [
            (1040, "WARN  job 4711: 40 s ago NVML hung in the driver"),
            (
                1000 + OVERDUE_S,
                "FAIL  job 4711: 5 min ago NVML hung in the driver",
            ),
        ] {
            let line = suspicion(&hung(1000), now).to_string();
            assert!(line.starts_with(words), "{line}");
        }
    }

    #[test]
    fn a_daemon_group_that_is_a_group_of_the_node_is_told() {
        let nogroup = users::get_group_by_name("nogroup").unwrap().gid();
        let line = group(nogroup).unwrap();
        assert!(line.text().contains("this node's group 'nogroup'"), "{line}");
        assert_eq!((group(65_530), group(0)), (None, None));
    }
}
