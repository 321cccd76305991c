//! What waits for the administrator on this node, under any scheduler; and `mpsctl idle`.

use super::terminal::say_json;
use mpsd::job::ledger::{Ledger, PAUSE_S, Suspicion};
use mpsd::job::node::Console as _;
use mpsd_core::config::Settings;
use mpsd_core::failure::EXIT_REFUSED;
use mpsd_core::{Failure, Refusal, Undetermined, text};
use setup::CheckLine::{self, Fail, Warn};
use setup::running_jobs;
use users::os::unix::GroupExt as _;

/// Seconds by which the timer, the end of a job or a prologue should have taken the second look.
const OVERDUE_S: u64 = 5 * PAUSE_S;

/// Returns the exit code.
pub fn idle(settings: &Settings, wait_s: u64, json: bool) -> Result<u8, Failure> {
    let jobs = running_jobs(&settings.paths, wait_s);
    let jobs = jobs.map_err(|why| Undetermined::new("this node", format!("{why:#}")))?;
    if json {
        say_json(&serde_json::json!({"jobs": jobs}));
    }
    if jobs.is_empty() {
        return Ok(0);
    }
    if json {
        return Ok(EXIT_REFUSED);
    }
    let list = jobs.join(", ");
    let why = format!("jobs with MPS run on it, and their end needs our files: {list}");
    let allowed = "after they have ended; 'mpsctl idle --wait SECONDS' waits";
    Err(Refusal::new("this node", why, allowed).into())
}

pub(super) fn waiting(settings: &Settings) -> Vec<CheckLine> {
    let mut node = super::this_node(settings);
    let now = node.since_boot();
    let suspicions = Ledger::read(&mut node).suspicions;
    let mut all: Vec<CheckLine> = suspicions.iter().map(|one| suspicion(one, now)).collect();
    if all.is_empty() && settings.paths.look_again().symlink_metadata().is_ok() {
        let text = "something hung in the driver and waits for a second look: 'mpsctl reconcile --dry-run' tells root what it is";
        all.push(Warn(text.to_owned()));
    }
    all.extend(group(settings.daemon_group));
    all
}

fn suspicion(suspicion: &Suspicion, now: u64) -> CheckLine {
    let age = now.saturating_sub(suspicion.since);
    let (jobs, what) = (suspicion.target.jobs(), &suspicion.what);
    let ago = match age {
        s if s < 120 => format!("{s} s"),
        s if s < 2 * 3600 => format!("{} min", s / 60),
        s => format!("{} h", s / 3600),
    };
    let text = format!(
        "{jobs}: {ago} ago {what} hung in the driver; the node takes no job with MPS until a second look"
    );
    match age < OVERDUE_S {
        true => Warn(format!("{text}, {PAUSE_S} s after it hung")),
        false => Fail(format!(
            "{text}, which is overdue: run 'mpsctl reconcile' as root, and let mpsd-reconcile.timer or cron do so"
        )),
    }
}

/// Users in the daemons' group can debug the daemons.
fn group(id: u32) -> Option<CheckLine> {
    let group = users::get_group_by_gid(id).filter(|_| id != 0)?;
    let (name, members) = (group.name().display(), group.members().iter());
    let members = members.map(|name| text::user(name.to_string_lossy()));
    let members = match &*text::list(members) {
        "" => String::new(),
        members => format!(" ({members})"),
    };
    Some(Warn(format!(
        "daemon_group {id} is this node's group '{name}': its members{members} can take over the daemons of their jobs, \
         which are outside the jobs' limits; name a group without members in mpsd.toml"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpsd::job::DrainTarget;
    use mpsd::job::ledger::Suspect;
    use mpsd_core::{JobId, Scheduler};
    use std::collections::BTreeSet;

    fn hung(since: u64) -> Suspicion {
        Suspicion {
            suspect: Suspect::Nvml,
            what: "NVML".to_owned(),
            since,
            target: DrainTarget {
                job: JobId::parse("4711").unwrap(),
                sharers: BTreeSet::new(),
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
        for (now, mark, ago) in [(1040, "WARN", "40 s"), (1000 + OVERDUE_S, "FAIL", "5 min")] {
            let line = suspicion(&hung(1000), now).to_string();
            let words = format!("{mark}  job 4711: {ago} ago NVML hung in the driver");
            assert!(line.starts_with(&words), "{line}");
        }
    }

    #[test]
    fn a_daemon_group_that_is_a_group_of_the_node_is_told() {
        let nogroup = users::get_group_by_name("nogroup").unwrap().gid();
        let line = group(nogroup).unwrap().to_string();
        assert!(line.contains("this node's group 'nogroup'"), "{line}");
        assert_eq!((group(65_530), group(0)), (None, None));
    }
}
