//! The polite rung: clients first, then the daemon, each command with a deadline.
//!
//! Killing a client with work in flight is undefined for every other client (the vendor's guide), so
//! `terminate_client` comes first; `quit` waits for clients for ever, so it comes after and with a deadline
//! (docs/facts/mps-control.md#crashes-and-hangs).

use super::session;
use crate::job::spec::Spec;
use mpsd_core::record::Daemon;
use std::time::Duration;

/// Seconds that `quit -t` gives the server.
const FORCED_QUIT_S: u64 = 1;

/// Asks every control daemon of `spec` to end.
///
/// # Errors
/// The daemons that did not, one line.
pub fn all(spec: &Spec) -> Result<(), String> {
    let failed: Vec<String> = spec
        .daemons
        .iter()
        .filter_map(|daemon| one(spec, daemon).err())
        .collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(failed.join("; "))
    }
}

fn one(spec: &Spec, daemon: &Daemon) -> Result<(), String> {
    let limit = spec.command_time();
    let say = |commands: &str, limit: Duration| session::say(&spec.control, daemon, commands, limit);
    let servers = say("get_server_list\n", limit)?;
    if servers.nobody_listens() {
        return Ok(());
    }
    for server in servers.numbers() {
        let clients = say(&format!("get_client_list {server}\n"), limit)?;
        let commands: String = clients
            .numbers()
            .iter()
            .map(|client| format!("terminate_client {server} {client}\n"))
            .collect();
        if !commands.is_empty() {
            say(&commands, limit)?;
        }
    }
    if say("quit\n", limit).is_ok() && say("get_server_list\n", limit).is_ok_and(|a| a.nobody_listens()) {
        return Ok(());
    }
    let forced = Duration::from_secs(FORCED_QUIT_S) + limit;
    say(&format!("quit -t {FORCED_QUIT_S}\n"), forced).map(|_| ())
}
