//! `quit`: of an idle, a busy and a starting server.

use std::time::{Duration, Instant};

use tests::double::look::{alive, wait_until};

use crate::bench::{Bench, PATIENCE, assert_within};
use crate::processes::{STRANGER, USER};

#[test]
fn an_idle_server_and_its_daemon_are_gone_soon_and_two_files_with_them() {
    let bench = Bench::new();
    let mut daemon = bench.daemon();
    let server = daemon.start_server();
    let ended = daemon.say("quit");
    assert_eq!((ended.out.as_str(), ended.code()), ("", 0));
    assert_within(ended.took, Duration::from_secs(1));
    let status = daemon.process().ended_within(PATIENCE).expect("the daemon ends");
    assert_eq!(status.code(), Some(0));
    assert!(wait_until(PATIENCE, || !alive(server)));
    assert_eq!(daemon.files(), ["control", "control_lock", "control_privileged"]);
}

#[test]
fn without_a_server_it_takes_no_time() {
    let bench = Bench::new();
    let mut daemon = bench.daemon();
    let ended = daemon.say("quit");
    assert_eq!(ended.code(), 0);
    assert_within(ended.took, Duration::from_millis(500));
    assert!(daemon.process().ended_within(PATIENCE).is_some());
}

#[test]
fn an_unknown_word_after_it_is_ignored() {
    let bench = Bench::new();
    let mut daemon = bench.daemon();
    assert_eq!(daemon.say("quit -x").code(), 0);
    assert!(daemon.process().ended_within(PATIENCE).is_some());
}

#[test]
fn right_after_start_server_it_ends_all_the_same() {
    let bench = Bench::new();
    let mut daemon = bench.daemon();
    daemon.say(&format!("start_server -uid {USER}"));
    let _ = daemon.say("quit");
    assert!(
        daemon.process().ended_within(PATIENCE).is_some(),
        "{}",
        daemon.log_text()
    );
}

#[test]
fn a_busy_client_blocks_it_until_the_client_ends() {
    let bench = Bench::new();
    let mut daemon = bench.daemon();
    let server = daemon.start_server();
    let begun = Instant::now();
    let client = daemon.client().on_first_gpu().holding(2).hold();
    let ended = daemon.say("quit");
    assert_eq!(ended.code(), 0, "{ended:?}");
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", ended.took);
    assert_eq!(client.finish().ended.code(), 0);
    assert!(daemon.process().ended_within(PATIENCE).is_some());
    let log = daemon.log_text();
    for text in [
        format!("Try shutting down server {server}, backoff is disabled"),
        format!("Server {server} has 2 active worker threads. Server will not shutdown."),
        format!("Control will try shutting down server {server} again in at most 200ms"),
        format!("Try shutting down server {server}, backoff is enabled"),
        "again in at most 400ms".into(),
        "again in at most 800ms".into(),
        format!("Server {server} exited with status 0"),
    ] {
        assert!(log.contains(&text), "'{text}' is not in\n{log}");
    }
}

#[test]
fn with_a_time_it_takes_the_client_down_after_that_time() {
    let bench = Bench::new();
    let mut daemon = bench.daemon();
    daemon.start_server();
    let client = daemon.client().holding(4).hold();
    let ended = daemon.say("quit -t 1");
    assert_eq!(ended.code(), 0, "{ended:?}");
    assert!(ended.took > Duration::from_millis(800), "{:?}", ended.took);
    assert_within(ended.took, Duration::from_secs(3));
    assert!(daemon.process().ended_within(PATIENCE).is_some());
    assert_eq!(client.finish().error(), Some(806));
    assert!(
        daemon.log_text().contains("Force shutting down server"),
        "{}",
        daemon.log_text()
    );
}

#[test]
fn while_it_waits_new_clients_fail_with_805_and_new_sessions_with_1() {
    let bench = Bench::new();
    let mut daemon = bench.daemon();
    daemon.start_server();
    let client = daemon.client().holding(4).hold();
    let quit = daemon.begin("quit");
    assert!(daemon.logs("Server will not shutdown"));
    assert_eq!(daemon.client().run().error(), Some(805));
    let session = daemon.say("get_server_list");
    assert_eq!((session.out.as_str(), session.code()), ("", 1));
    assert_eq!(session.err, "Cannot send command to MPS control daemon process\n");
    assert_eq!(quit.finish(PATIENCE).code(), 0);
    assert_eq!(client.finish().error(), None);
    assert!(daemon.process().ended_within(PATIENCE).is_some());
}

#[test]
fn commands_after_it_in_the_same_session_are_still_answered() {
    let bench = Bench::new();
    let mut daemon = bench.daemon();
    daemon.start_server();
    let get = "get_default_active_thread_percentage";
    let ended = daemon.say(&format!("{get}\nquit\n{get}"));
    assert_eq!(ended.out, "100.0\n100.0\n");
    assert!(daemon.process().ended_within(PATIENCE).is_some());
}

#[test]
fn it_goes_on_when_its_session_is_killed() {
    let bench = Bench::new();
    let mut daemon = bench.daemon();
    let server = daemon.start_server();
    let client = daemon.client().holding(3).hold();
    let session = daemon.begin("quit").finish(Duration::from_secs(1));
    assert!(session.hung(), "{session:?}");
    assert_eq!(client.finish().ended.code(), 0);
    assert!(
        daemon.process().ended_within(PATIENCE).is_some(),
        "{}",
        daemon.log_text()
    );
    assert!(wait_until(PATIENCE, || !alive(server)));
}

#[test]
fn the_exit_status_is_1_if_a_server_has_ever_failed() {
    let bench = Bench::new();
    let mut daemon = bench.daemon();
    daemon.say_as(STRANGER, &format!("start_server -uid {STRANGER}"));
    assert!(daemon.logs("exited with status 1"), "{}", daemon.log_text());
    daemon.start_server();
    assert_eq!(daemon.say("quit").code(), 1);
    assert_eq!(
        daemon.process().ended_within(PATIENCE).and_then(|s| s.code()),
        Some(1)
    );
    assert!(daemon.logs("Exit with status 1"), "{}", daemon.log_text());
}
