use super::*;
use mpsd_core::config::Settings;
use std::time::Duration;

#[test]
fn what_only_talks_to_the_daemons_needs_none_of_its_users_groups() {
    let recorded = include_str!("../../job/recorded/journal-1.json");
    let mut journal: Journal = serde_json::from_str(recorded).unwrap();
    journal.cgroup = None;
    (journal.user, journal.gid) = ("root".to_owned(), 0);
    let limit = Duration::from_secs(1);
    let node = RealNode::new("test", &Settings::usual(), limit, limit);
    let spec = to_ask(&journal, 1);
    let groups = |args| {
        let spawn = with_spec(&node, &journal, &spec, args).unwrap();
        spawn.identity.unwrap().groups
    };
    // From the directory, and the journal's own.
    assert_eq!(groups(&[]).iter().filter(|gid| **gid == 0).count(), 2);
    assert_eq!(groups(&["--stop"]), [0]);
}
