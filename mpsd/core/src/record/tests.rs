use super::*;

fn record(state: State, deadline_s: u32) -> Look {
    let job = JobId::parse("4711").unwrap();
    let mut record = Record::closed(job, 1000, state, "why".to_owned());
    record.deadline_s = deadline_s;
    Look::Found(Box::new(record))
}

fn denied() -> Look {
    Look::Denied("closed".to_owned())
}

/// What comes of looks at these seconds.
fn steps(looks: &[(u64, Look)]) -> Vec<String> {
    let mut waiting = Waiting::new(Duration::from_secs(20));
    let mut short = |(at, look): &(u64, Look)| match waiting.step(look.clone(), Duration::from_secs(*at)) {
        Step::Wait(left) => format!("wait {}", left.as_secs()),
        Step::Over(Ok(None)) => "without".to_owned(),
        Step::Over(Ok(Some(record))) => format!("{:?}", record.state),
        Step::Over(Err(why)) => why,
    };
    looks.iter().map(&mut short).collect()
}

#[test]
fn a_start_is_waited_for_as_long_as_its_record_says_and_through_a_gap() {
    let starting = |own| record(State::Starting, own);
    assert_eq!(steps(&[(0, Look::Absent)]), ["without"]);
    assert_eq!(steps(&[(0, record(State::Refused, 9))]), ["Refused"]);
    assert_eq!(
        steps(&[(0, starting(0)), (19, starting(0)), (20, starting(0))]),
        ["wait 20", "wait 1", "Starting"]
    );
    assert_eq!(
        steps(&[(0, starting(5)), (2, record(State::Ready, 5))]),
        ["wait 5", "Ready"]
    );
    assert_eq!(
        steps(&[
            (0, starting(9)),
            (8, Look::Absent),
            (10, record(State::Failed, 0))
        ]),
        ["wait 9", "wait 3", "Failed"]
    );
    assert_eq!(
        steps(&[(0, starting(9)), (1, Look::Absent), (4, Look::Absent)]),
        ["wait 9", "wait 3", "Starting"]
    );
    assert_eq!(
        steps(&[(0, denied()), (2, denied()), (3, denied())]),
        ["wait 3", "wait 1", "closed"]
    );
    assert_eq!(steps(&[(0, denied()), (1, starting(9))]), ["wait 3", "wait 8"]);
}

#[test]
fn only_roots_record_is_read_and_no_directory_means_no_record() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("4711/record");
    assert_eq!(look(&path), Ok(Look::Absent));
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    assert_eq!(look(&path), Ok(Look::Absent));
    let Look::Found(written) = record(State::Ready, 0) else {
        panic!()
    };
    std::fs::write(&path, written.to_text().unwrap()).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(look(&path), Ok(Look::Found(written)));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    assert!(
        look(&path)
            .unwrap_err()
            .contains("may be written by group or others")
    );
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
    assert!(look(&path).unwrap_err().contains("unreadable record"));
}
