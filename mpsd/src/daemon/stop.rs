//! The polite rung: clients first, then the daemon, each command with a deadline.
//!
//! Killing a client with work in flight is undefined for every other client (the vendor's guide), so
//! `terminate_client` comes first; `quit` waits for clients for ever, so it comes after and with a deadline
//! (docs/facts/mps-control.md#crashes-and-hangs).

use super::session::{self, Answer};
use crate::job::spec::Spec;
use mpsd_core::listener;
use mpsd_core::record::Daemon;
use std::time::Duration;

/// Seconds that `quit -t` gives the server.
const FORCED_QUIT_S: u64 = 1;

/// Asks every control daemon of `spec` to end.
///
/// # Errors
/// The daemons that did not, one line.
pub fn all(spec: &Spec) -> Result<(), String> {
    let known = spec
        .servers
        .iter()
        .copied()
        .map(Some)
        .chain(std::iter::repeat(None));
    let failed: Vec<String> = spec
        .daemons
        .iter()
        .zip(known)
        .filter_map(|(daemon, known)| one(spec, daemon, known).err())
        .collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(failed.join("; "))
    }
}

/// `known`: the one server that it had when its job began.
fn one(spec: &Spec, daemon: &Daemon, known: Option<i32>) -> Result<(), String> {
    let limit = spec.command_time();
    let say = |commands: &str, limit: Duration| session::say(&spec.control, daemon, commands, limit);
    let servers = "get_server_list\n";
    // The usual end costs one session: that server alone is there, and has no clients. Answers have nothing between them, so
    // that after any other the questions are asked again, each in a session of its own.
    let answer = match known {
        Some(server) => say(&format!("get_client_list {server}\n{servers}"), limit)?,
        None => say(servers, limit)?,
    };
    if answer.nobody_listens() {
        return Ok(());
    }
    match known {
        Some(server) if answer.text.trim() == server.to_string() => {}
        Some(_) => end_clients(&say(servers, limit)?, |commands| say(commands, limit))?,
        None => end_clients(&answer, |commands| say(commands, limit))?,
    }
    if say("quit\n", limit).is_ok() && listener::missing(&daemon.pipe).is_some() {
        return Ok(());
    }
    let forced = Duration::from_secs(FORCED_QUIT_S) + limit;
    say(&format!("quit -t {FORCED_QUIT_S}\n"), forced).map(|_| ())
}

fn end_clients(servers: &Answer, say: impl Fn(&str) -> Result<Answer, String>) -> Result<(), String> {
    for server in servers.numbers() {
        let clients = say(&format!("get_client_list {server}\n"))?;
        let commands: String = clients
            .numbers()
            .iter()
            .map(|client| format!("terminate_client {server} {client}\n"))
            .collect();
        if !commands.is_empty() {
            say(&commands)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
