//! The server: how it starts, what it answers, and what can be changed in it.

use nix::sys::signal::Signal;
use tests::double::look::{alive, process, wait_until};
use tests::node_bed::kill;

use crate::bench::{Bench, Daemon, PATIENCE};
use crate::processes::{STRANGER, USER};

#[test]
fn start_server_returns_before_the_server_is_ready() {
    // The double takes this long so that a loaded machine sees the state in time.
    let bench = Bench::with(|b| b.times(|t| t.server_ready = (3000, 3000)));
    let daemon = bench.daemon();
    daemon.say(&format!("start_server -uid {USER}")).answers("");
    let at_once = daemon.log_text().contains(": Ready");
    assert!(!at_once);
    daemon.logs(": Ready");
}

#[test]
fn the_server_is_a_child_of_the_daemon_and_runs_as_its_user() {
    let daemon = Daemon::new();
    let about = process(daemon.start_server()).unwrap();
    assert_eq!((about.parent, about.uid), (daemon.pid(), USER));
    let name = "nvidia-cuda-mps-server";
    assert_eq!(about.args.len(), 1, "{about:?}");
    assert!(about.args[0].ends_with(name), "{about:?}");
    assert_eq!(about.exe.file_name().unwrap(), name);
}

#[test]
fn a_second_start_changes_nothing_a_strangers_is_refused_and_its_own_fails_in_the_log_alone() {
    let daemon = Daemon::new();
    let refused = daemon.say(&format!("start_server -uid {STRANGER}"));
    let why = format!("Insufficient privileges for UID {USER}.");
    assert!(refused.stdout.starts_with(&why), "{refused:?}");
    let ended = daemon.say_as(STRANGER, &format!("start_server -uid {STRANGER}"));
    ended.answers("");
    let failed = format!("Failed to start server using uid {STRANGER}");
    daemon.logs(&format!("{failed}, error: Operation not permitted"));
    daemon.logs("exited with status 1");
    assert_eq!(daemon.server(), None);
    let server = daemon.start_server();
    daemon.say(&format!("start_server -uid {USER}")).answers("");
    let again = daemon.say(&format!("start_server -uid {STRANGER}"));
    assert_eq!(again.stdout, refused.stdout);
    assert_eq!(daemon.server(), Some(server));
}

#[test]
fn the_server_logs_the_limits_that_it_applies() {
    let bench = Bench::new();
    let uuid = &bench.gpus[0].uuid;
    let daemon = bench.daemon();
    daemon.say(&format!(
        "set_default_active_thread_percentage 25\nset_default_device_pinned_mem_limit 7 3G\n\
         set_default_device_pinned_mem_limit 0 900M\nset_default_device_pinned_mem_limit {uuid} 4G\n\
         set_default_device_pinned_mem_limit 0 3G"
    ));
    daemon.start_server();
    let log = daemon.log_text();
    let texts = log.lines().filter_map(|line| line.split_once("] "));
    let texts = texts.map(|(_, text)| text);
    let limits: Vec<&str> = texts.filter(|text| text.contains(" set to ")).collect();
    let memory = |name: &str, bytes: u64| {
        format!("Device pinned memory limit for device {name} set to {bytes:#x} bytes")
    };
    assert_eq!(
        limits,
        [
            "Active Threads Percentage set to 25.0".to_owned(),
            // In the order in which they were first named; the first one wins.
            memory("0", 3 << 30),
            memory(uuid, 4 << 30),
            memory("7", 3 << 30),
            "Server Priority set to 0".to_owned(),
        ]
    );
}

#[test]
fn sigterm_ends_an_idle_server_with_0_and_the_daemon_stays() {
    let daemon = Daemon::new();
    let server = daemon.start_server();
    kill(server, Signal::SIGTERM);
    assert!(wait_until(PATIENCE, || !alive(server)));
    daemon.logs(&format!("Server {server} exited with status 0"));
    assert_eq!(daemon.server(), None);
}

#[test]
fn sigterm_ends_a_busy_server_too_and_its_client_gets_806() {
    let daemon = Daemon::new();
    let server = daemon.start_server();
    let client = daemon.client().holding(2).hold();
    kill(server, Signal::SIGTERM);
    assert!(wait_until(PATIENCE, || !alive(server)));
    assert_eq!(client.finish().error(), Some(806));
}
