//! Each reason, and its exit code.

use super::*;
use crate::cli::status::view::{Learnt, view};
use crate::daemon::inquiry::{Said, Silence};
use mpsd_core::JobId;
use mpsd_core::record::Daemon;

fn subject(state: State) -> Subject {
    Subject {
        job: JobId::parse("7").unwrap(),
        uid: 1000,
        user: None,
        began: None,
        state,
        left: false,
        reason: Some("a reason".to_owned()),
        gpus: Vec::new(),
        daemons: vec![Daemon {
            gpus: Vec::new(),
            pipe: "/p".into(),
            log: "/l".into(),
            threads: None,
            memory: Vec::new(),
            priority: None,
            partitions: Vec::new(),
        }],
    }
}

fn said(state: State, said: Result<Said, Silence>, pipe: Option<&str>) -> (u8, String) {
    let subject = subject(state);
    let learnt = Learnt {
        said: vec![said],
        ..Learnt::default()
    };
    let found = whether(&subject, &view(&subject, &learnt), pipe);
    (found.code(), found.because)
}

#[test]
fn each_state_of_a_task_has_its_reason_and_code() {
    let hangs = Silence::NoAnswer("no answer within 2000 ms".to_owned());
    for (state, daemon, pipe, code, words) in [
        (State::Ready, Ok(Said::default()), Some("/p"), 0, "answers"),
        (State::Ready, Ok(Said::default()), None, 1, "is not set here"),
        (State::Ready, Ok(Said::default()), Some("/q\u{1b}"), 1, "'/q?'"),
        (State::Ready, Err(Silence::Ended), Some("/p"), 1, "outside MPS"),
        (State::Ready, Err(hangs), Some("/p"), 2, "no answer within"),
        (
            State::Starting,
            Ok(Said::default()),
            Some("/p"),
            1,
            "being started",
        ),
        (State::Refused, Ok(Said::default()), None, 1, "refused: a reason"),
        (
            State::Failed,
            Ok(Said::default()),
            None,
            1,
            "did not start: a reason",
        ),
    ] {
        let (is, because) = said(state, daemon, pipe);
        assert!(
            is == code && because.contains(words),
            "{state:?} {pipe:?}: {is} {because}"
        );
    }
}

#[test]
fn a_link_to_the_jobs_own_directory_is_that_directory() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    let (own, other, link) = (dir.join("own"), dir.join("other"), dir.join("link"));
    for dir in [&own, &other] {
        std::fs::create_dir_all(dir).unwrap();
    }
    std::os::unix::fs::symlink(&own, &link).unwrap();
    std::fs::write(dir.join("file"), "").unwrap();
    let mut subject = subject(State::Ready);
    subject.daemons[0].pipe.clone_from(&own);
    let learnt = Learnt {
        said: vec![Ok(Said::default())],
        ..Learnt::default()
    };
    let view = view(&subject, &learnt);
    let code = |subject: &Subject, pipe: &Path| whether(subject, &view, pipe.to_str()).code();
    assert_eq!(code(&subject, &link), 0, "a link");
    assert_eq!(code(&subject, &other), 1, "another directory");
    assert_eq!(code(&subject, &dir.join("none")), 1, "no directory");
    assert_eq!(
        code(&subject, &dir.join("file/below")),
        2,
        "one that cannot be looked at"
    );
    // As in a container that has it under another name.
    subject.daemons[0].pipe = dir.join("gone");
    assert_eq!(code(&subject, &link), 2, "the job's own cannot be looked at");
}
