use super::*;

/// A job of release 0.1.0 under Torque, with every effect that there was, as its prologue left it. Such a file is
/// never changed: a format that cannot read it has its own number and keeps the reader of this one.
const RECORDED: &str = include_str!("../recorded/journal-1.json");

#[test]
fn a_job_that_began_under_an_older_release_can_be_undone() {
    let journal = Journal::parse(RECORDED).unwrap();
    assert_eq!(journal.job.as_str(), "10.srv");
    assert_eq!(
        (journal.uid, journal.gid, journal.user.as_str()),
        (65534, 65534, "nobody")
    );
    assert_eq!(
        journal.supervisor,
        Some(ProcessRef {
            pid: 4198,
            start_time: 354_802
        })
    );
    let undo: Vec<String> = journal.to_undo().map(ToString::to_string).collect();
    assert_eq!(undo.len(), 5, "{undo:?}");
    assert!(undo[4].starts_with("claim GPU-85e8a6f0"), "{undo:?}");
    assert_eq!(journal.daemons[0].pipe, PathBuf::from("/run/jobs/10.srv/pipe"));
    assert!(journal.drain.enabled && journal.drain.prefix == "mpsd:");
}

#[test]
fn what_is_written_today_is_what_was_recorded() {
    let journal = Journal::parse(RECORDED).unwrap();
    assert_eq!(
        journal.to_text().unwrap(),
        RECORDED,
        "a changed format needs a new number and a new recording"
    );
}

#[test]
fn a_journal_of_a_newer_release_is_left_alone() {
    let newer = RECORDED.replacen("\"version\": 1", "\"version\": 2", 1);
    let why = Journal::parse(&newer).unwrap_err();
    assert!(why.contains("newer release"), "{why}");
}
