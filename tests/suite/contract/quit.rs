//! `quit`: of an idle, a busy and a starting server.

use std::time::{Duration, Instant};

use tests::double::look::{alive, wait_until};

use crate::bench::{Daemon, PATIENCE, assert_within};
use crate::processes::{STRANGER, USER};

#[test]
fn an_idle_server_and_its_daemon_are_gone_soon_and_two_files_with_them() {
    let mut daemon = Daemon::new();
    let server = daemon.start_server();
    let ended = daemon.say("quit");
    ended.answers("");
    assert_within(ended.wall, Duration::from_secs(1));
    assert_eq!(daemon.ends(), Some(0));
    assert!(wait_until(PATIENCE, || !alive(server)));
    let left = ["control", "control_lock", "control_privileged"];
    assert_eq!(daemon.files(), left);
}

#[test]
fn without_a_server_it_takes_no_time() {
    let mut daemon = Daemon::new();
    let ended = daemon.say("quit");
    assert_eq!(ended.code, Some(0));
    assert_within(ended.wall, Duration::from_millis(500));
    daemon.ends();
}

#[test]
fn right_after_start_server_it_ends_all_the_same() {
    let mut daemon = Daemon::new();
    daemon.say(&format!("start_server -uid {USER}"));
    daemon.say("quit");
    daemon.ends();
}

#[test]
fn a_busy_client_blocks_it_until_the_client_ends() {
    let mut daemon = Daemon::new();
    let server = daemon.start_server();
    let begun = Instant::now();
    let client = daemon.client().on_first_gpu().holding(2).hold();
    let ended = daemon.say("quit");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(begun.elapsed() >= Duration::from_secs(2), "{ended:?}");
    assert_eq!(client.finish().ended.code, Some(0));
    daemon.ends();
    for text in [
        &format!("Try shutting down server {server}, backoff is disabled"),
        &format!("Server {server} has 2 active worker threads. Server will not shutdown."),
        &format!("Control will try shutting down server {server} again in at most 200ms"),
        &format!("Try shutting down server {server}, backoff is enabled"),
        "again in at most 400ms",
        "again in at most 800ms",
        &format!("Server {server} exited with status 0"),
    ] {
        daemon.logs(text);
    }
}

#[test]
fn with_a_time_it_takes_the_client_down_after_that_time() {
    let mut daemon = Daemon::new();
    daemon.start_server();
    let client = daemon.client().holding(4).hold();
    let ended = daemon.say("quit -t 1");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.wall > Duration::from_millis(800), "{:?}", ended.wall);
    assert_within(ended.wall, Duration::from_secs(3));
    daemon.ends();
    assert_eq!(client.finish().error(), Some(806));
    daemon.logs("Force shutting down server");
}

#[test]
fn while_it_waits_new_clients_fail_with_805_and_new_sessions_with_1() {
    let mut daemon = Daemon::new();
    daemon.start_server();
    let client = daemon.client().holding(4).hold();
    let quit = daemon.begin("quit");
    daemon.logs("Server will not shutdown");
    assert_eq!(daemon.client().run().error(), Some(805));
    let session = daemon.say("get_server_list");
    assert_eq!((session.stdout.as_str(), session.code), ("", Some(1)));
    let told = "Cannot send command to MPS control daemon process\n";
    assert_eq!(session.stderr, told);
    assert_eq!(quit.finish(PATIENCE).code, Some(0));
    assert_eq!(client.finish().error(), None);
    daemon.ends();
}

#[test]
fn it_goes_on_when_its_session_is_killed() {
    let mut daemon = Daemon::new();
    let server = daemon.start_server();
    let client = daemon.client().holding(3).hold();
    assert!(daemon.hangs("quit"));
    assert_eq!(client.finish().ended.code, Some(0));
    daemon.ends();
    assert!(wait_until(PATIENCE, || !alive(server)));
}

#[test]
fn the_exit_status_is_1_if_a_server_has_ever_failed() {
    let mut daemon = Daemon::new();
    daemon.say_as(STRANGER, &format!("start_server -uid {STRANGER}"));
    daemon.logs("exited with status 1");
    daemon.start_server();
    assert_eq!(daemon.say("quit").code, Some(1));
    assert_eq!(daemon.ends(), Some(1));
    daemon.logs("Exit with status 1");
}
