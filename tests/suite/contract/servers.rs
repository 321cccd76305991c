//! The server: how it is started, what it says, and what of it can be changed.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::double::look::{alive, process, wait_until};

use crate::bench::{Bench, PATIENCE, nvidia};
use crate::processes::{STRANGER, USER};

#[test]
fn start_server_returns_before_the_server_is_ready() {
    // The double takes long enough for a loaded machine to look in time.
    let bench = if nvidia() {
        Bench::new()
    } else {
        Bench::of_double(|b| b.times(|t| t.server_ready = (3000, 3000)))
    };
    let daemon = bench.daemon();
    let ended = daemon.say(&format!("start_server -uid {USER}"));
    assert_eq!((ended.out.as_str(), ended.code()), ("", 0));
    assert!(
        !daemon.log_text().contains(": Ready"),
        "the server was ready at once"
    );
    assert!(daemon.logs(": Ready"));
}

#[test]
fn active_is_what_the_daemon_says_of_a_ready_server() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    daemon.say(&format!("start_server -uid {USER}"));
    let active = || {
        daemon
            .server()
            .is_some_and(|s| daemon.say(&format!("get_server_status {s}")).out == "ACTIVE\n")
    };
    assert!(wait_until(PATIENCE, active), "{}", daemon.log_text());
    let server = daemon.server().unwrap();
    assert!(daemon.log_text().contains(&format!("NEW SERVER {server}: Ready")));
}

/// What `mpsd` relies on: it reads the log, which costs no session, and does not ask.
#[test]
fn a_server_is_active_from_the_moment_its_log_says_ready() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    daemon.say(&format!("start_server -uid {USER}"));
    assert!(daemon.logs("NEW SERVER "), "{}", daemon.log_text());
    assert!(daemon.logs("Server has started"), "{}", daemon.log_text());
    let text = daemon.log_text();
    let (_, rest) = text.split_once("NEW SERVER ").unwrap();
    let (server, _) = rest.split_once(": Ready").unwrap();
    assert_eq!(daemon.say(&format!("get_server_status {server}")).out, "ACTIVE\n");
}

#[test]
fn the_server_is_a_child_of_the_daemon_and_runs_as_its_user() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let about = process(daemon.start_server()).unwrap();
    assert_eq!((about.parent, about.uid), (daemon.pid(), USER));
    assert!(
        about.args.len() == 1 && about.args[0].ends_with("nvidia-cuda-mps-server"),
        "{about:?}"
    );
    assert_eq!(about.exe.file_name().unwrap(), "nvidia-cuda-mps-server");
}

#[test]
fn a_second_start_changes_nothing() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let server = daemon.start_server();
    assert_eq!(daemon.say(&format!("start_server -uid {USER}")).out, "");
    assert_eq!(daemon.server(), Some(server));
    let foreign = daemon.say(&format!("start_server -uid {STRANGER}"));
    assert!(
        foreign
            .out
            .starts_with(&format!("Insufficient privileges for UID {USER}.")),
        "{foreign:?}"
    );
    assert_eq!(daemon.server(), Some(server));
}

#[test]
fn a_server_for_another_user_is_refused_and_one_that_he_asks_for_himself_fails_in_the_log_alone() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let refused = daemon.say(&format!("start_server -uid {STRANGER}"));
    assert!(
        refused
            .out
            .starts_with(&format!("Insufficient privileges for UID {USER}.")),
        "{refused:?}"
    );
    let ended = daemon.say_as(STRANGER, &format!("start_server -uid {STRANGER}"));
    assert_eq!((ended.out.as_str(), ended.code()), ("", 0));
    let text = format!("Failed to start server using uid {STRANGER}, error: Operation not permitted");
    assert!(daemon.logs(&text), "{}", daemon.log_text());
    assert!(daemon.logs("exited with status 1"));
    assert_eq!(daemon.server(), None);
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
    let of_server = |line: &str| line.split_once("] ").map(|(_, text)| text.to_owned());
    let limits: Vec<String> = log
        .lines()
        .filter_map(of_server)
        .filter(|l| l.contains(" set to "))
        .collect();
    let memory = |name: &str, bytes: u64| {
        format!("Device pinned memory limit for device {name} set to {bytes:#x} bytes")
    };
    assert_eq!(
        limits,
        [
            "Active Threads Percentage set to 25.0".to_owned(),
            // In the order in which they were first named, the first one last: it is the one that wins.
            memory("0", 3 << 30),
            memory(uuid, 4 << 30),
            memory("7", 3 << 30),
            "Server Priority set to 0".to_owned(),
        ]
    );
}

#[test]
fn a_running_server_can_be_given_other_limits() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let server = daemon.start_server();
    for (command, answer) in [
        (format!("get_active_thread_percentage {server}"), "100.0\n"),
        (format!("set_active_thread_percentage {server} 60"), "60.0\n"),
        (format!("set_active_thread_percentage {server} abc"), "60.0\n"),
        (format!("get_active_thread_percentage {server}"), "60.0\n"),
        (format!("set_device_pinned_mem_limit {server} 0 2G"), ""),
        (format!("get_device_pinned_mem_limit {server} 0"), "2G\n"),
        (format!("get_device_pinned_mem_limit {server} 1"), ""),
    ] {
        assert_eq!(daemon.say(&command).out, answer, "to '{command}'");
    }
    let record = daemon.client().run();
    let expected = tests::double::visible::multiprocessors(bench.gpus[0].sms, 60.0);
    assert_eq!(
        crate::client::of_first_gpu(record.record(), "sms"),
        u64::from(expected)
    );
}

/// What `mpsctl set` relies on: a server's own limits may be above the defaults, by UUID too, and end with it.
#[test]
fn a_running_servers_limits_are_its_own_and_the_defaults_are_the_next_ones() {
    let bench = Bench::new();
    let uuid = &bench.gpus[0].uuid;
    let daemon = bench.daemon();
    let defaults = [
        "set_default_active_thread_percentage 25".to_owned(),
        format!("set_default_device_pinned_mem_limit {uuid} 1G"),
    ];
    defaults.iter().for_each(|command| drop(daemon.say(command)));
    let server = daemon.start_server();
    for (command, answer) in [
        (format!("set_active_thread_percentage {server} 60"), "60.0\n"),
        (format!("set_device_pinned_mem_limit {server} {uuid} 2G"), ""),
        (format!("get_device_pinned_mem_limit {server} {uuid}"), "2G\n"),
        ("get_default_active_thread_percentage".to_owned(), "25.0\n"),
        (format!("get_default_device_pinned_mem_limit {uuid}"), "1G\n"),
        ("set_default_active_thread_percentage 12.5".to_owned(), "12.5\n"),
        (format!("get_active_thread_percentage {server}"), "60.0\n"),
    ] {
        assert_eq!(daemon.say(&command).out, answer, "to '{command}'");
    }
    let has = |percent: f64, mib: u64| {
        let record = daemon.client().allocating().run();
        let of = |name| crate::client::of_first_gpu(record.record(), name);
        let sms = tests::double::visible::multiprocessors(bench.gpus[0].sms, percent);
        assert_eq!(of("sms"), u64::from(sms));
        let allocatable = of("allocatable_mib");
        assert!((mib - 512..=mib).contains(&allocatable), "{allocatable} of {mib}");
    };
    has(60.0, 2048);
    kill(Pid::from_raw(server as i32), Signal::SIGTERM).unwrap();
    // Who comes before the daemon has seen the end is refused with 805 (seen once on driver 580).
    assert!(daemon.logs(&format!("Server {server} exited with status 0")));
    has(12.5, 1024);
}

#[test]
fn sigterm_ends_an_idle_server_with_0_and_the_daemon_stays() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let server = daemon.start_server();
    kill(Pid::from_raw(server as i32), Signal::SIGTERM).unwrap();
    assert!(wait_until(PATIENCE, || !alive(server)));
    assert!(
        daemon.logs(&format!("Server {server} exited with status 0")),
        "{}",
        daemon.log_text()
    );
    assert_eq!(daemon.server(), None);
}

#[test]
fn sigterm_ends_a_busy_server_too_and_its_client_gets_806() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let server = daemon.start_server();
    let client = daemon.client().holding(2).hold();
    kill(Pid::from_raw(server as i32), Signal::SIGTERM).unwrap();
    assert!(wait_until(PATIENCE, || !alive(server)));
    assert_eq!(client.finish().error(), Some(806));
}
