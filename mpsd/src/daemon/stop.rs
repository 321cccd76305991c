//! The polite rung of an end; each command has a deadline. Killing a client with work in flight is
//! undefined for all others, so `terminate_client` comes first. `quit` waits for clients
//! (docs/facts/mps-control.md#crashes-and-hangs).

use super::session::{self, Answer};
use crate::job::spec::Spec;
use mpsd_core::listener;
use mpsd_core::record::Daemon;
use std::time::Duration;

const FORCED_QUIT_S: u64 = 1;

pub fn all(spec: &Spec) -> Result<(), String> {
    let all = spec.daemons.iter().enumerate();
    let failed =
        all.filter_map(|(place, daemon)| one(spec, daemon, spec.servers.get(place).copied()).err());
    let failed: Vec<String> = failed.collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(failed.join("; ")),
    }
}

fn one(spec: &Spec, daemon: &Daemon, known: Option<i32>) -> Result<(), String> {
    let limit = spec.command_time();
    let say =
        |commands: &str, limit: Duration| session::say(&spec.control, daemon, commands, limit);
    let servers = "get_server_list\n";
    // Usually only that server is there, without clients, and one session is enough. Answers have
    // no delimiters, so after any other answer each question has its own session.
    let answer = match known {
        Some(server) => say(&format!("get_client_list {server}\n{servers}"), limit)?,
        None => say(servers, limit)?,
    };
    if answer.nobody_listens() {
        return Ok(());
    }
    if known.is_none_or(|server| answer.text.trim() != server.to_string()) {
        let servers = if known.is_some() {
            say(servers, limit)?
        } else {
            answer
        };
        end_those(&servers, |_| true, |commands| say(commands, limit))?;
    }
    if say("quit\n", limit).is_ok() && listener::missing(&daemon.pipe).is_some() {
        return Ok(());
    }
    let forced = Duration::from_secs(FORCED_QUIT_S) + limit;
    say(&format!("quit -t {FORCED_QUIT_S}\n"), forced).map(|_| ())
}

pub fn clients(spec: &Spec, meant: &[i32]) -> Result<usize, String> {
    let limit = spec.command_time();
    let mut ended = 0;
    for daemon in &spec.daemons {
        let say = |commands: &str| session::say(&spec.control, daemon, commands, limit);
        ended += end_those(
            &say("get_server_list\n")?,
            |client| meant.contains(&client),
            say,
        )?;
    }
    Ok(ended)
}

fn end_those(
    servers: &Answer,
    is_meant: impl Fn(i32) -> bool,
    say: impl Fn(&str) -> Result<Answer, String>,
) -> Result<usize, String> {
    let mut ended = 0;
    for server in servers.numbers() {
        let mut clients = say(&format!("get_client_list {server}\n"))?.numbers();
        clients.retain(|client| is_meant(*client));
        let end = |client: &i32| format!("terminate_client {server} {client}\n");
        let commands: String = clients.iter().map(end).collect();
        if !commands.is_empty() {
            say(&commands)?;
            ended += clients.len();
        }
    }
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use tempfile::TempDir;

    /// What an end tells a control daemon that answers `clients` to the first question, a line for
    /// each session. Server 691 is proved.
    fn told(clients: &str, known: &[i32]) -> Vec<String> {
        told_in(&tempfile::tempdir().unwrap(), clients, known)
    }

    fn told_in(directory: &TempDir, clients: &str, known: &[i32]) -> Vec<String> {
        let (control, said) = (
            directory.path().join("control"),
            directory.path().join("said"),
        );
        let script = format!(
            "#!/bin/sh\nwords=$(cat | tr '\\n' ' ')\necho \"$words\" >> '{}'\ncase \"$words\" in\n\
         'get_client_list 691 get_server_list ') printf '{clients}' ;;\n\
         'get_client_list 691 ') echo 877 ;;\n'get_server_list ') echo 691 ;;\nesac\n",
            said.display()
        );
        std::fs::write(&control, script).unwrap();
        std::fs::set_permissions(
            &control,
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        let dir = |name| directory.path().join(name);
        let spec = serde_json::json!({"job": "1", "uid": 0, "control": control, "nvml": "", "servers": known,
            "daemons": [{"gpus": [], "pipe": dir("pipe"), "log": dir("log")}],
            "start_ms": 1, "command_ms": 20_000, "over_limit": "ignore"});
        let spec: Spec = serde_json::from_value(spec).unwrap();
        all(&spec).unwrap();
        let said = std::fs::read_to_string(said).unwrap();
        said.lines()
            .map(|line| line.trim_end().to_owned())
            .collect()
    }

    #[test]
    fn an_end_without_clients_costs_two_sessions_and_any_other_asks_each_thing_alone() {
        let usual = "get_client_list 691 get_server_list";
        let asked = [
            "get_server_list",
            "get_client_list 691",
            "terminate_client 691 877",
            "quit",
        ];
        assert_eq!(told("691\\n", &[691]), [usual, "quit"]);
        assert_eq!(told("691\\n", &[]), asked);
        // A client; another server beside it, or in its place; and nothing at all.
        for other in ["877\\n691\\n", "691\\n692\\n", "692\\n", "", "6917\\n"] {
            let said = told(other, &[691]);
            assert_eq!(said.first().map(String::as_str), Some(usual), "{other}");
            assert_eq!(said[1..], asked, "{other}");
        }
    }

    /// Its answer to `quit` proves nothing: it waits for its clients, and a server that hangs holds
    /// it up.
    #[test]
    fn a_daemon_that_still_listens_after_quit_is_told_to_end_by_force() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("pipe")).unwrap();
        let listener = UnixListener::bind(directory.path().join("pipe/control")).unwrap();
        let last = told_in(&directory, "691\\n", &[691]).pop();
        assert_eq!(last.as_deref(), Some("quit -t 1"));
        drop(listener);
    }
}
