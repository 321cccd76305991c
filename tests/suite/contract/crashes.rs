//! What happens to the others if control daemon, server or client dies or hangs.

use std::time::Duration;

use nix::sys::signal::Signal;
use tests::double::look::{alive, wait_until};
use tests::node_bed::kill;

use crate::bench::{Daemon, HANGS, PATIENCE};
use crate::client::under_mps;

#[test]
fn a_killed_server_costs_its_clients_806_and_the_next_client_gets_a_new_one() {
    let daemon = Daemon::new();
    let server = daemon.start_server();
    let client = daemon.client().holding(2).hold();
    kill(server, Signal::SIGKILL);
    assert_eq!(client.finish().error(), Some(806));
    assert_eq!(daemon.server(), None);
    assert!(under_mps(daemon.client().run().record()));
    assert!(daemon.server().is_some_and(|new| new != server));
}

#[test]
fn a_killed_control_daemon_takes_its_server_with_it_and_later_clients_run_outside_mps() {
    let mut daemon = Daemon::new();
    let server = daemon.start_server();
    let client = daemon.client().holding(2).hold();
    daemon.process().signal(Signal::SIGKILL);
    daemon.ends();
    assert!(wait_until(Duration::from_secs(1), || !alive(server)));
    assert_eq!(client.finish().error(), Some(806));
    assert_eq!(daemon.say("get_server_list").code, Some(1));
    assert!(!under_mps(daemon.client().run().record()));
}

#[test]
fn a_stopped_server_hangs_every_command_that_asks_it_and_then_all_others_and_quit_too() {
    let daemon = Daemon::new();
    let server = daemon.start_server();
    kill(server, Signal::SIGSTOP);
    // The daemon answers this without its server.
    let list = "get_server_list";
    daemon.say(list).answers(&format!("{server}\n"));
    let status = format!("get_server_status {server}");
    for command in [&status, "ps", "quit", "quit -t 1", list] {
        assert!(daemon.hangs(command), "'{command}' answered");
    }
    kill(server, Signal::SIGCONT);
    assert!(wait_until(PATIENCE, || daemon.say(list).code.is_some()));
}

#[test]
fn a_stopped_server_dies_with_its_control_daemon() {
    let mut daemon = Daemon::new();
    let server = daemon.start_server();
    kill(server, Signal::SIGSTOP);
    daemon.process().signal(Signal::SIGKILL);
    daemon.ends();
    let gone = wait_until(HANGS, || !alive(server));
    if !gone {
        kill(server, Signal::SIGKILL);
    }
    assert!(gone);
}

#[test]
fn a_stopped_control_daemon_hangs_commands_and_new_clients() {
    let mut daemon = Daemon::new();
    daemon.start_server();
    daemon.process().signal(Signal::SIGSTOP);
    assert!(daemon.hangs("get_server_list"));
    assert!(daemon.client().run_within(HANGS * 2).ended.hung());
    daemon.process().signal(Signal::SIGCONT);
    assert!(daemon.answers());
}
