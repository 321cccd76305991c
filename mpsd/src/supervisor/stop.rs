//! The polite rung of an end. Killing a client with work in flight is undefined for all others, so
//! `terminate_client` comes first. `quit` waits for clients
//! (docs/facts/mps-control.md#crashes-and-hangs).

use super::session::{self, Answer};
use crate::job::spec::Spec;
use mpsd_core::listener;
use mpsd_core::record::Daemon;
use std::time::Duration;

const FORCED_QUIT_S: u64 = 1;

pub fn all(spec: &Spec) -> Result<(), String> {
    let ended = spec.daemons.iter().map(|daemon| one(spec, daemon));
    let failed: Vec<String> = ended.filter_map(Result::err).collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(failed.join("; ")),
    }
}

fn one(spec: &Spec, daemon: &Daemon) -> Result<(), String> {
    let limit = spec.command_time();
    let say =
        |commands: &str, limit: Duration| session::say(&spec.control, daemon, commands, limit);
    let servers = say("get_server_list\n", limit)?;
    if servers.nobody_listens() {
        return Ok(());
    }
    end_those(&servers, |_| true, |commands| say(commands, limit))?;
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

    /// What an end tells the daemon of server 691 with these clients, a line for each session.
    fn told(directory: &TempDir, clients: &str) -> Vec<String> {
        let [control, said] = ["control", "said"].map(|name| directory.path().join(name));
        let script = format!(
            "#!/bin/sh\nwords=$(cat | tr '\\n' ' ')\necho \"$words\" >> '{}'\ncase \"$words\" in\n\
         'get_server_list ') echo 691 ;;\n'get_client_list 691 ') printf '{clients}' ;;\nesac\n",
            said.display()
        );
        std::fs::write(&control, script).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&control, mode).unwrap();
        let dir = |name| directory.path().join(name);
        let spec = serde_json::json!({"job": "1", "uid": 0, "control": control, "nvml": "",
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
    fn clients_are_told_to_end_before_their_daemon() {
        let ends = |clients| told(&tempfile::tempdir().unwrap(), clients);
        let asked = ["get_server_list", "get_client_list 691"];
        assert_eq!(ends(""), [&asked[..], &["quit"]].concat());
        let end = "terminate_client 691 877 terminate_client 691 878";
        assert_eq!(ends("877\\n878\\n"), [&asked[..], &[end, "quit"]].concat());
    }

    /// Its answer to `quit` proves nothing: it waits for its clients.
    #[test]
    fn a_daemon_that_still_listens_after_quit_is_told_to_end_by_force() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("pipe")).unwrap();
        let listener = UnixListener::bind(directory.path().join("pipe/control")).unwrap();
        let last = told(&directory, "").pop();
        assert_eq!(last.as_deref(), Some("quit -t 1"));
        drop(listener);
    }
}
