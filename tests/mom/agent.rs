//! The simulator itself: if it were milder than a real mom, it would prove nothing.

use std::time::{Duration, Instant};
use tests::double::look::wait_until;
use tests::mom::node::MomNode;
use tests::mom::wire::{Ended, Run, Stream, Victims};

fn node() -> (MomNode, tempfile::TempDir) {
    let place = tempfile::Builder::new().prefix("mom-").tempdir().unwrap();
    (MomNode::new(place.path(), "nodea"), place)
}

fn script(node: &mut MomNode, text: &str, mode: u32) -> Run {
    node.write(
        "/var/spool/x/prologue",
        &format!("#!/bin/sh\n{text}\n"),
        mode,
    );
    Run {
        argv: vec!["/var/spool/x/prologue".into(), "0.vm".into()],
        env: [("PATH".to_owned(), "/bin:/usr/bin".to_owned())].into(),
        cwd: "/var/spool/x".into(),
        session: true,
        checked: true,
        in_mom: true,
        ..Run::default()
    }
}

/// Only these `sleep 3…` run. A killed process may still show for a moment.
fn check_sleepers(node: &mut MomNode, expected: &str) {
    let mut found = String::new();
    wait_until(Duration::from_secs(3), || {
        found = node
            .sh("ps -eo args= | grep '^sleep 3' | sort")
            .trim()
            .to_owned();
        found == expected
    });
    assert_eq!(found, expected);
}

#[test]
fn signals_time_limits_and_ends_kill_whom_each_mom_kills() {
    let (mut node, _place) = node();
    let run = script(&mut node, "kill -ABRT $$", 0o500);
    assert_eq!(node.run(run), Ended::Signal(6));
    // `timeout` makes a process group. Torque's SIGKILL reaches the session, OpenPBS's the group,
    // also after success.
    for (last, at_limit, kill_group_after, ended, left) in [
        (
            "sleep 330",
            Victims::Session,
            false,
            Ended::Limit,
            "sleep 320",
        ),
        (
            "sleep 330",
            Victims::Group,
            false,
            Ended::Limit,
            "sleep 310\nsleep 320",
        ),
        (
            "sleep 340 & sleep 0.2",
            Victims::Group,
            true,
            Ended::Code(0),
            "sleep 310\nsleep 320",
        ),
        (
            "true",
            Victims::Session,
            false,
            Ended::Code(0),
            "sleep 310\nsleep 320",
        ),
    ] {
        let text = format!("timeout 319 sleep 310 & setsid sleep 320 & sleep 0.2; {last}");
        let run = Run {
            limit_ms: 1500,
            at_limit,
            kill_group_after,
            ..script(&mut node, &text, 0o500)
        };
        let started = Instant::now();
        assert_eq!(node.run(run), ended, "{last}");
        assert!(ended != Ended::Limit || started.elapsed().as_millis() >= 1500);
        check_sleepers(&mut node, left);
        node.kill_mom();
        assert!(node.snapshot().processes.is_empty());
    }
}

#[test]
fn a_held_descriptor_or_terminal_is_seen() {
    let (mut node, _place) = node();
    let closed = "</dev/null >/dev/null 2>&1";
    for (descriptors, held) in [
        (format!("{closed} 9>&- 4>&-"), false),
        (format!("{closed} 4>&-"), true),
        ("9>&- 4>&-".to_owned(), true),
    ] {
        let text = format!("setsid sleep 30 {descriptors} & sleep 0.2; exit 0");
        let run = Run {
            stdin: Stream::Terminal,
            stdout: Stream::Terminal,
            stderr: Stream::Terminal,
            leaked: vec![4, 9],
            ..script(&mut node, &text, 0o500)
        };
        let pid = node.start(run).unwrap();
        assert_eq!(node.wait(pid, 5000), Ended::Code(0));
        assert_eq!(node.is_held(pid), held, "{descriptors}");
        node.kill_mom();
    }
}
