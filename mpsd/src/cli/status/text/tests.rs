//! The words, and the width.

use super::*;
use crate::cli::status::view::ClientView;
use crate::daemon::dialogue::InForce;
use crate::daemon::inquiry::Server;
use mpsd_core::{GpuUuid, JobId};

fn example() -> View {
    let gpu = |n: usize| GpuUuid::parse(&format!("GPU-0000000{n}")).unwrap();
    let client = ClientView {
        pid: 4711,
        rank: Some(3),
        command: Some("./a-program with-a-long-name".to_owned()),
        memory_mib: Some(512),
        server: 691,
    };
    View {
        job: JobId::parse("7").unwrap(),
        uid: 1000,
        user: Some("alice".to_owned()),
        began: None,
        state: State::Ready,
        left: false,
        reason: None,
        daemons: vec![DaemonView {
            gpus: vec![gpu(0), gpu(1)],
            servers: vec![Server {
                pid: 691,
                state: "ACTIVE".to_owned(),
            }],
            limits: vec![InForce {
                limit: "active thread percentage".to_owned(),
                asked: Some("25".to_owned()),
                set: None,
                said: Some("100.0".to_owned()),
                holds: false,
            }],
            silent: None,
            ended: false,
        }],
        gpus: vec![
            GpuView {
                index: 0,
                uuid: gpu(0),
                clients: Some(vec![client]),
            },
            GpuView {
                index: 1,
                uuid: gpu(1),
                clients: Some(Vec::new()),
            },
        ],
        without_client: Some(vec![gpu(1)]),
    }
}

#[test]
fn a_job_is_told_in_lines_that_fit() {
    let text = lines(&example(), None).join("\n");
    assert_eq!(
        text,
        "\
job 7 of alice: MPS is up
  control daemon: answers; server 691 ACTIVE
  active thread percentage: asked 25, the daemon says 100.0: NOT in force
  GPU     PID  RANK  MEMORY  COMMAND
    0    4711     3    512M  ./a-program with-a-long-name
    1  no client
  no client uses GPU 1 (GPU-00000001)"
    );
    for width in [1, 10, 40, 80] {
        let lines = lines(&example(), Some(width));
        assert!(
            lines.iter().all(|line| line.chars().count() <= width),
            "{lines:?}"
        );
    }
    assert!(lines(&example(), Some(40)).iter().any(|line| line.ends_with('>')));
}

#[test]
fn a_daemon_that_says_nothing_is_told_with_why() {
    let mut view = example();
    view.daemons[0].silent = Some("it has ended".to_owned());
    view.gpus[0].clients = None;
    view.without_client = None;
    let text = lines(&view, None).join("\n");
    assert!(text.contains("control daemon: it has ended"), "{text}");
    assert!(text.contains("0  its clients are not known"), "{text}");
    assert!(!text.contains("no client uses"), "{text}");
}

#[test]
fn a_job_without_mps_is_told_with_its_reason_and_no_table() {
    let mut view = example();
    (view.state, view.reason) = (State::Refused, Some("MPS_THREADS=0".to_owned()));
    view.daemons.clear();
    assert_eq!(
        lines(&view, None),
        ["job 7 of alice: its MPS was refused: MPS_THREADS=0"]
    );
}
