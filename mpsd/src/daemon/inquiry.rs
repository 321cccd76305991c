//! What a control daemon says of its servers and clients, asked for [`crate::cli::status`]. Its user's word, whoever asks.

use super::dialogue::{self, InForce};
use super::door;
use super::session;
use crate::sys::deadline::Deadline;
use mpsd_core::GpuUuid;
use mpsd_core::record::Daemon;
use mpsd_core::text::one_line;
use std::path::Path;
use std::time::Duration;

/// Servers that are asked: one a user, and the daemon has one user.
const MOST_SERVERS: usize = 4;
/// Clients that are told of a daemon: far more than its GPUs take.
const MOST_CLIENTS: usize = 1024;
/// Shortest part of a UUID by which `ps` may name a GPU (docs/facts/mps-control.md#the-command-session): `GPU-` and eight
/// digits.
const SHORTEST_NAME: usize = 12;

/// What it said.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Said {
    /// Its servers.
    pub servers: Vec<Server>,
    /// Their clients.
    pub clients: Vec<Client>,
    /// The limits of new clients.
    pub limits: Vec<InForce>,
}

/// Why a control daemon says nothing of use.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display, serde::Serialize, serde::Deserialize)]
pub enum Silence {
    /// Nobody listens in its directory.
    #[display("it has ended")]
    Ended,
    /// There is no whole answer in time.
    #[display("{_0}")]
    NoAnswer(String),
}

/// A server.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Server {
    /// Its pid.
    pub pid: i32,
    /// `ACTIVE`, `FAULT` or another word.
    pub state: String,
}

/// A client of a server.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Client {
    /// Its pid.
    pub pid: i32,
    /// Its server's pid.
    pub server: i32,
    /// The GPU that `ps` names for it.
    pub gpu: Option<GpuUuid>,
}

/// Asks each of these control daemons of a job for all of it, by the vendor's program `control`, each within `limit`: which limits
/// are wanted now, the job's `mpsd` says.
pub fn ask_all(control: &Path, daemons: &[Daemon], limit: Duration) -> Vec<Result<Said, Silence>> {
    let now = door::now(daemons);
    let both = daemons.iter().zip(&now);
    both.map(|(asked, now)| ask(control, asked, now, limit)).collect()
}

/// Asks the control daemon `daemon`, of which the job asked for the limits of `asked`.
fn ask(control: &Path, asked: &Daemon, daemon: &Daemon, limit: Duration) -> Result<Said, Silence> {
    let end = Deadline::after(limit);
    let say = |commands: &str| match session::say(control, daemon, commands, end.remaining()) {
        Ok(answer) if answer.nobody_listens() => Err(Silence::Ended),
        Ok(answer) => Ok(answer),
        Err(why) => Err(Silence::NoAnswer(one_line(&why, 200))),
    };
    // Asked first: it always answers.
    let limits = say(&dialogue::read(daemon))?.text;
    if limits.trim().is_empty() {
        return Err(Silence::NoAnswer(
            "it answers nothing: it is ending, or broken".to_owned(),
        ));
    }
    let list = say("get_server_list\n")?;
    let mut said = Said::default();
    for pid in list.numbers().into_iter().take(MOST_SERVERS) {
        let answer = say(&format!("get_server_status {pid}\nget_client_list {pid}\n"))?;
        let (state, clients) = answer.text.split_once('\n').unwrap_or((&answer.text, ""));
        said.servers.push(Server {
            pid,
            state: one_line(state.trim(), 40),
        });
        let room = MOST_CLIENTS.saturating_sub(said.clients.len());
        let clients = session::numbers(clients).into_iter().take(room);
        said.clients.extend(clients.map(|client| Client {
            pid: client,
            server: pid,
            gpu: None,
        }));
    }
    if !said.clients.is_empty() {
        place(&mut said.clients, &say("ps\n")?.text, &daemon.gpus);
    }
    said.limits = dialogue::in_force(asked, daemon, &limits);
    Ok(said)
}

/// Enters the GPUs that the table of `ps` names. Nothing else of it is used: its last column is the clients' own text.
fn place(clients: &mut [Client], table: &str, gpus: &[GpuUuid]) {
    for row in table.lines() {
        let mut words = row.split_ascii_whitespace();
        let Some(pid) = words.next().and_then(|word| word.parse::<i32>().ok()) else {
            continue;
        };
        // Its number at the server, and the server.
        let Some(name) = words.nth(2).filter(|name| name.len() >= SHORTEST_NAME) else {
            continue;
        };
        let gpu = gpus.iter().find(|gpu| gpu.as_str().starts_with(name));
        for client in clients.iter_mut().filter(|client| client.pid == pid) {
            client.gpu = gpu.cloned();
        }
    }
}

#[cfg(test)]
mod tests {
    //! Answers as recorded, and as a user's own program may make them.

    use super::*;

    const GPUS: [&str; 2] = [
        "GPU-200b4359-5562-4e0e-ed46-88b581af6524",
        "GPU-7dbe9b56-f73b-eee7-0000-000000000000",
    ];
    /// Recorded (driver 580).
    const TABLE: &str = "\
PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND
877       11        691            GPU-200b4359-5562-4e0e    4026531836     /tmp/client
";

    fn clients(pids: &[i32]) -> Vec<Client> {
        let client = |pid: &i32| Client {
            pid: *pid,
            server: 691,
            gpu: None,
        };
        pids.iter().map(client).collect()
    }

    fn placed(table: &str) -> Vec<Option<String>> {
        let gpus = GPUS.map(|gpu| GpuUuid::parse(gpu).unwrap());
        let mut clients = clients(&[877, 878]);
        place(&mut clients, table, &gpus);
        let gpu = |client: Client| client.gpu.map(|gpu| gpu.to_string());
        clients.into_iter().map(gpu).collect()
    }

    #[test]
    fn a_client_is_placed_by_the_short_uuid_of_the_recorded_table() {
        assert_eq!(placed(TABLE), [Some(GPUS[0].to_owned()), None]);
    }

    #[test]
    fn a_table_that_is_none_places_nobody() {
        for table in [
            "",
            "Server not found\n",
            "877\n",
            "877 11 691 GPU-\n",
            "877 11 691 G\n",
            "877 11 691 GPU-99999999-5562\n",
            "\u{1b}[2J877 11 691 GPU-200b4359-5562-4e0e\n",
            "99999999999999999999 11 691 GPU-200b4359-5562-4e0e\n",
        ] {
            assert_eq!(placed(table), [None, None], "{table:?}");
        }
    }
}
