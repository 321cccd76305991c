use super::*;
use crate::sys::spawn::Identity;
use mpsd_core::config::Settings;
use std::time::Duration;

const STRANGER: u32 = 54_321;

#[test]
fn what_only_talks_to_the_daemons_has_the_groups_of_the_jobs_mpsd_and_asks_nobody_for_them() {
    let recorded = include_str!("../../job/recorded/journal-1.json");
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
