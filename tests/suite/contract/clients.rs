//! Clients: how they find their server, which ones are refused, and how the daemon lists them.

use std::time::Duration;

use nix::sys::signal::Signal;
use tests::double::look::wait_until;
use tests::run::chmod;

use crate::bench::{Bench, Daemon, PATIENCE, assert_within};
use crate::client::{Client, Holding, of_first_gpu, under_mps};
use crate::processes::STRANGER;

#[test]
fn a_client_without_a_daemon_runs_outside_mps_without_an_error() {
    let bench = Bench::new();
    let outcome = Client::new(&bench).run();
    let record = outcome.record();
    assert!(!under_mps(record), "{record}");
    assert_eq!((outcome.error(), outcome.ended.code), (None, Some(0)));
    assert_eq!(of_first_gpu(record, "sms"), u64::from(bench.gpus[0].sms));
}

#[test]
fn the_first_client_starts_the_server() {
    let daemon = Daemon::new();
    let outcome = daemon.client().run();
    assert!(under_mps(outcome.record()));
    daemon.logs("Server is not ready, push client to pending list");
    daemon.logs(": Server already exists");
    // This line also appears for every connection that works. By itself it explains nothing.
    daemon.logs("User did not send valid credentials");
}

#[test]
fn a_client_is_listed_two_ways() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let server = daemon.start_server();
    let list = format!("get_client_list {server}");
    // Before any client exists.
    for command in ["ps", &list] {
        assert_eq!(daemon.say(command).stdout, "", "to '{command}'");
    }
    let client = daemon.client().on_first_gpu().holding(20).hold();
    let pid = client.pid().to_string();
    assert_eq!(daemon.say(&list).stdout, format!("{pid}\n"));
    let ps = daemon.say("ps").stdout;
    let mut rows = ps
        .lines()
        .map(|line| Vec::from_iter(line.split_whitespace()));
    let heads = ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"];
    assert_eq!(rows.next().expect("heads"), heads);
    let cells = rows.next().expect("a row");
    // Recorded: the UUID is shortened, so no other program accepts it as a GPU's name.
    let shortened = &bench.gpus[0].uuid[..22];
    let told = [cells[0], cells[2], cells[3]];
    assert_eq!(told, [&pid, &server.to_string(), shortened]);
}

#[test]
fn terminate_client_answers_0_and_the_clients_next_call_fails_with_810() {
    let daemon = Daemon::new();
    let server = daemon.start_server();
    let client = daemon.client().holding(2).hold();
    let unknown = daemon.say(&format!("terminate_client {server} 999999"));
    unknown.answers("Invalid process 999999!\n1\n");
    let ended = daemon.say(&format!("terminate_client {server} {}", client.pid()));
    ended.answers("0\n");
    assert_within(ended.wall, Duration::from_secs(1));
    let outcome = client.finish();
    assert_eq!(outcome.error(), Some(810), "{:?}", outcome.ended);
    daemon.assert_active(server);
}

#[test]
fn a_killed_client_hurts_no_other() {
    let daemon = Daemon::new();
    let server = daemon.start_server();
    let client = daemon.client().holding(20).hold();
    client.signal(Signal::SIGKILL);
    drop(client);
    assert!(wait_until(PATIENCE, || daemon.say("ps").stdout.is_empty()));
    daemon.assert_active(server);
    assert!(under_mps(daemon.client().run().record()));
    assert_eq!(daemon.server(), Some(server));
}

#[test]
fn a_stranger_who_reaches_the_pipe_fails_with_805_and_takes_the_owners_idle_server_down() {
    let daemon = Daemon::new();
    let server = daemon.start_server();
    let outcome = daemon.client().user(STRANGER).run();
    assert_eq!(outcome.error(), Some(805), "{:?}", outcome.ended);
    assert_eq!(daemon.server(), None);
    daemon.logs(&format!("Server {server} exited with status 0"));
    // How often it tries depends on the program (2 and 6 times seen).
    let failed = format!("Failed to start server using uid {STRANGER}");
    let log = daemon.log_text();
    assert!(log.matches(&failed).count() >= 2, "{log}");
}

#[test]
fn a_stranger_who_may_not_enter_the_pipe_runs_outside_mps() {
    let daemon = Daemon::new();
    let server = daemon.start_server();
    chmod(&daemon.pipe, 0o700);
    let outcome = daemon.client().user(STRANGER).run();
    assert!(!under_mps(outcome.record()));
    assert_eq!(daemon.say_as(STRANGER, "get_server_list").code, Some(1));
    assert_eq!(daemon.server(), Some(server));
}

/// So many of these at once: how many are served by MPS, and what the others say.
fn at_once(client: &Client, count: usize) -> (usize, Vec<String>) {
    let hold = || client.start();
    let results: Vec<Result<Holding, String>> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..count).map(|_| scope.spawn(hold)).collect();
        clients.into_iter().map(|c| c.join().unwrap()).collect()
    });
    let is_served = |client: &&Holding| under_mps(&client.record);
    let served = results.iter().flatten().filter(is_served).count();
    let refused = results.into_iter().filter_map(Result::err);
    (served, refused.collect())
}

#[test]
fn forty_eight_clients_are_served_and_the_next_one_fails() {
    let daemon = Daemon::new();
    daemon.start_server();
    let (served, refused) = at_once(&daemon.client().holding(60), 50);
    assert_eq!((served, refused.len()), (48, 2), "{refused:?}");
}

#[test]
fn the_more_connections_a_client_wants_the_fewer_are_served_and_the_next_ones_fail_with_809_or_2() {
    for (connections, most) in [("1", 48), ("8", 15), ("32", 3)] {
        let daemon = Daemon::new();
        daemon.start_server();
        let client = daemon.client().holding(60);
        let client = client.env("CUDA_DEVICE_MAX_CONNECTIONS", connections);
        let (served, refused) = at_once(&client, most + 2);
        let told = format!("{connections}: {refused:?}");
        assert_eq!((served, refused.len()), (most, 2), "{told}");
        let codes = ["\"code\":808", "\"code\":809", "\"code\":2,"];
        let mut said = refused.iter().map(|said| said.replace(' ', ""));
        assert!(
            said.all(|said| codes.iter().any(|code| said.contains(code))),
            "{told}"
        );
    }
}
