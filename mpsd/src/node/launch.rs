//! `mpsd` run as the job's user, with its specification.

use super::real::{RealNode, groups_of};
use crate::job::Journal;
use crate::job::journal::ProcessRef;
use crate::job::spec::{SPEC_FD, Spec};
use crate::sys::deadline::Deadline;
use crate::sys::descriptors::holding;
use crate::sys::spawn::Spawn;
use mpsd_core::Failure;
use mpsd_core::config::MemoryOverLimit;
use mpsd_core::environment::PIPE_DIRECTORY;
use mpsd_core::failure::{Evidence, Fault, Undetermined};
use mpsd_core::record::ClientLimits;

/// 48 clients need several descriptors each in the server (the vendor's guide asks for more than the usual 1024).
const OPEN_FILES: u64 = 16_384;
/// A control command's share of a polite stop.
const COMMAND_MS: u64 = 2_000;

/// `mpsd` as the job's user, with `spec` on its descriptor. With `args` it only talks to the daemons that are there.
pub fn with_spec(node: &RealNode, journal: &Journal, spec: &Spec, args: &[&str]) -> Result<Spawn, Failure> {
    let text = serde_json::to_string(spec).map_err(|e| broken("specification", &e.to_string()))?;
    let groups = match args {
        [] => groups_of(journal),
        // Those of the job's own `mpsd`, by which the vendor's program may be reached: no directory service is asked again.
        _ => {
            let supervisor = journal.supervisor.and_then(ProcessRef::open);
            let groups = supervisor.and_then(|mpsd| mpsd.groups());
            groups.unwrap_or_else(|| vec![journal.gid])
        }
    };
    let mut spawn = node.as_user(journal, "mpsd", groups)?;
    spawn.args = args.iter().map(Into::into).collect();
    // It needs no variable. By this one it is known as the job's own where there is no cgroup and its starter was
    // killed before its pid stood in the journal.
    spawn.env = journal
        .daemons
        .first()
        .map(|daemon| (PIPE_DIRECTORY.into(), daemon.pipe.clone().into()))
        .into_iter()
        .collect();
    spawn.nofile = Some(OPEN_FILES);
    let text = holding(text.as_bytes());
    let text = text.map_err(|e| Undetermined::new("mpsd's specification", e.desc()))?;
    spawn.inherit = vec![(text, SPEC_FD)];
    Ok(spawn)
}

/// What `mpsd` is told where it only asks the daemons of a job, `command_ms` for each command.
pub fn to_ask(journal: &Journal, command_ms: u64) -> Spec {
    Spec {
        job: journal.job.as_str().to_owned(),
        uid: journal.uid,
        control: journal.control.clone(),
        nvml: journal.nvml.clone(),
        daemons: journal.daemons.clone(),
        servers: journal.servers().map(|server| server.pid).collect(),
        start_ms: 0,
        command_ms,
        over_limit: MemoryOverLimit::Ignore,
        most: ClientLimits::default(),
    }
}

/// The polite rung, by a process of the job's user: root does not talk to sockets that a user owns.
pub fn ask_to_stop(node: &mut RealNode, journal: &Journal, deadline: Deadline) {
    let per_command = (deadline.remaining() / 3).as_millis().min(u128::from(COMMAND_MS));
    let per_command = u64::try_from(per_command).unwrap_or(COMMAND_MS);
    let spec = to_ask(journal, per_command);
    let Ok(spawn) = with_spec(node, journal, &spec, &["--stop"]) else {
        return;
    };
    let Ok(mut child) = spawn.start(deadline) else {
        return;
    };
    if child.wait(deadline).is_none() {
        child.kill(Deadline::after_ms(200));
    }
}

fn broken(what: &str, why: &str) -> Failure {
    Fault::new(Evidence::Storage, what, why).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::spawn::Identity;
    use mpsd_core::config::Settings;
    use std::time::Duration;

    const STRANGER: u32 = 54_321;

    /// Outside of it a process of the job would not be found, and not be bounded.
    #[test]
    fn nothing_of_a_job_runs_outside_of_the_cgroup_that_was_made_for_it() {
        let recorded = include_str!("../job/recorded/journal-1.json");
        let mut journal: Journal = serde_json::from_str(recorded).unwrap();
        let limit = Duration::from_secs(1);
        let node = RealNode::new("test", &Settings::usual(), limit, limit);
        let starts = |journal: &Journal| with_spec(&node, journal, &to_ask(journal, 1), &[]);
        journal.cgroup = Some("/sys/fs/cgroup/gone".into());
        assert!(matches!(starts(&journal), Err(Failure::Undetermined(_))));
        journal.cgroup = None;
        assert!(starts(&journal).is_ok());
    }

    #[test]
    fn what_only_talks_to_the_daemons_has_the_groups_of_the_jobs_mpsd_and_asks_nobody_for_them() {
        let recorded = include_str!("../job/recorded/journal-1.json");
        let mut journal: Journal = serde_json::from_str(recorded).unwrap();
        journal.cgroup = None;
        (journal.user, journal.gid) = ("root".to_owned(), 0);
        let limit = Duration::from_secs(1);
        let node = RealNode::new("test", &Settings::usual(), limit, limit);
        let groups = |journal: &Journal, args| {
            let spawn = with_spec(&node, journal, &to_ask(journal, 1), args).unwrap();
            spawn.identity.unwrap().groups
        };
        // From the directory, and the journal's own.
        assert_eq!(groups(&journal, &[]).iter().filter(|gid| **gid == 0).count(), 2);
        let mut sleeper = Spawn::new("/bin/sleep");
        sleeper.args = vec!["60".into()];
        sleeper.identity = Some(Identity {
            uid: STRANGER,
            gid: STRANGER,
            groups: vec![STRANGER + 1, STRANGER + 2],
        });
        let mut sleeper = sleeper.start(Deadline::after_ms(20_000)).unwrap();
        journal.supervisor = sleeper.id();
        let has = groups(&journal, &["--stop"]);
        assert!(
            [1, 2].iter().all(|more| has.contains(&(STRANGER + more))),
            "{has:?}"
        );
        assert!(!has.contains(&0), "{has:?}");
        sleeper.kill(Deadline::after_ms(20_000));
        assert_eq!(groups(&journal, &["--stop"]), [0]);
    }
}
