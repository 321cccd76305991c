//! Clients: how they find their server, who is refused, and how the daemon lists them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::double::look::wait_until;

use crate::bench::{Bench, PATIENCE, assert_within};
use crate::client::{Client, Holding, of_first_gpu, under_mps};
use crate::processes::STRANGER;

#[test]
fn a_client_without_a_daemon_runs_outside_mps_without_an_error() {
    let bench = Bench::new();
    let outcome = Client::new(&bench).run();
    let record = outcome.record();
    assert!(!under_mps(record), "{record}");
    assert_eq!((outcome.error(), outcome.ended.code()), (None, 0));
    assert_eq!(of_first_gpu(record, "sms"), u64::from(bench.gpus[0].sms));
}

#[test]
fn the_first_client_starts_the_server() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let outcome = daemon.client().run();
    assert!(under_mps(outcome.record()));
    let log = daemon.log_text();
    assert!(
        log.contains("Server is not ready, push client to pending list"),
        "{log}"
    );
    assert!(log.contains(": Server already exists"), "{log}");
    // It stands at every connection that works: alone it explains nothing.
    assert!(log.contains("User did not send valid credentials"), "{log}");
}

#[test]
fn a_client_is_listed_three_ways() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let server = daemon.start_server();
    for command in [
        "ps".to_owned(),
        "get_device_client_list".into(),
        format!("get_client_list {server}"),
    ] {
        assert_eq!(
            daemon.say(&command).out,
            "",
            "to '{command}' before there is a client"
        );
    }
    let client = daemon.client().on_first_gpu().holding(20).hold();
    let pid = client.pid();
    assert_eq!(
        daemon.say(&format!("get_client_list {server}")).out,
        format!("{pid}\n")
    );
    let devices = daemon.say("get_device_client_list").out;
    assert!(
        devices.starts_with("[0] ") && devices.contains(&format!("\n{pid}.")),
        "{devices}"
    );
    let ps = daemon.say("ps").out;
    let heads: Vec<&str> = ps.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(heads, ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"]);
    let row = ps.lines().nth(1).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    // Recorded: the UUID is shortened, so it names no GPU to any other program.
    assert_eq!(cells[3], &bench.gpus[0].uuid[..22]);
    assert_eq!(
        (cells[0], cells[2]),
        (pid.to_string().as_str(), server.to_string().as_str())
    );
}

#[test]
fn terminate_client_answers_0_and_the_clients_next_call_fails_with_810() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let server = daemon.start_server();
    let client = daemon.client().holding(2).hold();
    let nobody = daemon.say(&format!("terminate_client {server} 999999"));
    assert_eq!(
        (nobody.out.as_str(), nobody.code()),
        ("Invalid process 999999!\n1\n", 0)
    );
    let ended = daemon.say(&format!("terminate_client {server} {}", client.pid()));
    assert_eq!((ended.out.as_str(), ended.code()), ("0\n", 0));
    assert_within(ended.took, Duration::from_secs(1));
    let outcome = client.finish();
    assert_eq!(outcome.error(), Some(810), "{:?}", outcome.ended);
    assert_eq!(daemon.say(&format!("get_server_status {server}")).out, "ACTIVE\n");
}

#[test]
fn a_killed_client_hurts_nobody() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let server = daemon.start_server();
    let client = daemon.client().holding(20).hold();
    client.signal(Signal::SIGKILL);
    drop(client);
    assert!(wait_until(PATIENCE, || daemon.say("ps").out.is_empty()));
    assert_eq!(daemon.say(&format!("get_server_status {server}")).out, "ACTIVE\n");
    assert!(under_mps(daemon.client().run().record()));
    assert_eq!(daemon.server(), Some(server));
}

#[test]
fn a_stranger_who_reaches_the_pipe_fails_with_805_and_takes_the_owners_idle_server_down() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let server = daemon.start_server();
    let outcome = daemon.client().user(STRANGER).run();
    assert_eq!(outcome.error(), Some(805), "{:?}", outcome.ended);
    assert_eq!(daemon.server(), None);
    let log = daemon.log_text();
    assert!(
        log.contains(&format!("Server {server} exited with status 0")),
        "{log}"
    );
    // How often it is tried depends on the program (2 and 6 times seen).
    assert!(
        log.matches(&format!("Failed to start server using uid {STRANGER}"))
            .count()
            >= 2,
        "{log}"
    );
}

#[test]
fn a_stranger_who_may_not_enter_the_pipe_runs_outside_mps() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let server = daemon.start_server();
    fs::set_permissions(&daemon.pipe, Permissions::from_mode(0o700)).unwrap();
    let outcome = daemon.client().user(STRANGER).run();
    assert!(!under_mps(outcome.record()));
    assert_eq!(daemon.say_as(STRANGER, "get_server_list").code(), 1);
    assert_eq!(daemon.server(), Some(server));
}

#[test]
fn forty_eight_clients_are_served_and_the_next_one_fails() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    daemon.start_server();
    let hold = || daemon.client().holding(60).start();
    let results: Vec<Result<Holding, String>> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..50).map(|_| scope.spawn(hold)).collect();
        clients.into_iter().map(|c| c.join().unwrap()).collect()
    });
    let served = results
        .iter()
        .filter(|r| r.as_ref().is_ok_and(|c| under_mps(&c.record)))
        .count();
    let refused: Vec<&String> = results.iter().filter_map(|r| r.as_ref().err()).collect();
    assert_eq!((served, refused.len()), (48, 2), "{refused:?}");
}
