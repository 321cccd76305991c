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
        reason: Some("a reason".to_owned()),
        gpus: Vec::new(),
        daemons: vec![Daemon {
            gpus: Vec::new(),
            pipe: "/p".into(),
            log: "/l".into(),
            threads: None,
            memory: Vec::new(),
            priority: None,
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
