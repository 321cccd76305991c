//! Asks control daemons for their servers, clients and limits, for `mpsctl status`. Every answer is
//! the user's word.

use super::dialogue::{self, InForce};
use super::{logs, session};
use mpsd_core::GpuUuid;
use mpsd_core::record::Daemon;
use mpsd_core::text::one_line;
use mpsd_sys::deadline::Deadline;
use mpsd_sys::process::{Entry, ProcessTable};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read as _};
use std::path::Path;
use std::time::Duration;

const SOCKET: &str = "control";
const PID_FILE: &str = "nvidia-cuda-mps-control.pid";
const LONGEST_PID: u64 = 16;
const MOST_SERVERS: usize = 4;
const MOST_CLIENTS: usize = 1024;
/// Of a GPU in `ps`: `GPU-` and eight digits (docs/facts/mps-control.md#the-command-session).
const SHORTEST_NAME: usize = 12;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonAnswer {
    pub servers: Vec<Server>,
    pub clients: Vec<Client>,
    pub limits: Vec<InForce>,
}

#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display, Serialize, Deserialize)]
pub enum AnswerError {
    #[display("it has ended")]
    Ended,
    /// A daemon of the user's own took over the pipe directory.
    #[display(
        "process {_0}, which mpsd did not start, serves its directory without the job's limits: remove the lines that start a \
         daemon from the script, and submit the job again"
    )]
    Replaced(i32),
    /// It runs, and its sockets are gone.
    #[display(
        "its sockets were removed, and no program reaches it: leave its directory alone, and submit the job again"
    )]
    Hidden,
    #[display("{_0}")]
    Failed(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    pub pid: i32,
    /// `ACTIVE`, `FAULT` or another word.
    pub state: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    pub pid: i32,
    pub server: i32,
    pub gpu: Option<GpuUuid>,
}

type Answer = Result<DaemonAnswer, AnswerError>;

pub fn ask_all(control: &Path, daemons: &[Daemon], limit: Duration) -> Vec<Answer> {
    let owner = daemons.first().and_then(|first| logs::owner(&first.log));
    let ask = |daemon: &Daemon| {
        out_of_reach(&daemon.pipe, owner).map_or_else(|| ask(control, daemon, limit), Err)
    };
    daemons.iter().map(ask).collect()
}

/// Whether the job's control daemon, a child of the `mpsd` with the pid `owner`, does not serve
/// `pipe`. Without an `mpsd` this is not known.
fn out_of_reach(pipe: &Path, owner: Option<i32>) -> Option<AnswerError> {
    let owner = owner?;
    let is_absent = |error: std::io::Error| error.kind() == ErrorKind::NotFound;
    let table = ProcessTable::scan()?;
    if pipe.join(SOCKET).symlink_metadata().is_err_and(is_absent) {
        return table.children(owner).next().map(|_| AnswerError::Hidden);
    }
    let pid = pid_in(&pipe.join(PID_FILE))?;
    let is_it = |entry: &&Entry| entry.stat.id.pid == pid;
    let is_ours = table.descendants(owner).iter().any(is_it);
    let lives = table.iter().any(|entry| is_it(&entry));
    (lives && !is_ours).then_some(AnswerError::Replaced(pid))
}

/// The pid that a control daemon wrote. The user may have put anything in its place.
fn pid_in(path: &Path) -> Option<i32> {
    let mut text = String::new();
    let mut file = logs::open_to_read(path).ok()?.take(LONGEST_PID);
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn ask(control: &Path, daemon: &Daemon, limit: Duration) -> Answer {
    let end = Deadline::after(limit);
    let say = |commands: &str| match session::say(control, daemon, commands, end.remaining()) {
        Ok(answer) if answer.nobody_listens() => Err(AnswerError::Ended),
        Ok(answer) => Ok(answer),
        Err(why) => Err(AnswerError::Failed(one_line(&why, 200))),
    };
    // This question always has an answer, so it comes first.
    let limits = say(&dialogue::read(daemon))?.text;
    if limits.trim().is_empty() {
        let why = "it answers nothing: it is ending, or broken";
        return Err(AnswerError::Failed(why.to_owned()));
    }
    let mut all = DaemonAnswer {
        limits: dialogue::in_force(daemon, &limits),
        ..DaemonAnswer::default()
    };
    let servers = say("get_server_list\n")?.numbers();
    for pid in servers.into_iter().take(MOST_SERVERS) {
        let answer = say(&format!("get_server_status {pid}\nget_client_list {pid}\n"))?;
        let (state, clients) = answer.text.split_once('\n').unwrap_or((&answer.text, ""));
        let state = one_line(state.trim(), 40);
        all.servers.push(Server { pid, state });
        let room = MOST_CLIENTS.saturating_sub(all.clients.len());
        let clients = session::numbers(clients).into_iter().take(room);
        all.clients.extend(clients.map(|client| Client {
            pid: client,
            server: pid,
            gpu: None,
        }));
    }
    if !all.clients.is_empty() {
        place(&mut all.clients, &say("ps\n")?.text, &daemon.gpus);
    }
    Ok(all)
}

/// The last column of `ps` is the clients' own text, so this reads only the first words.
fn place(clients: &mut [Client], table: &str, gpus: &[GpuUuid]) {
    for row in table.lines() {
        let words: Vec<&str> = row.split_ascii_whitespace().take(4).collect();
        let [pid, _id, _server, name] = words.as_slice() else {
            continue;
        };
        let (Ok(pid), true) = (pid.parse::<i32>(), name.len() >= SHORTEST_NAME) else {
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
    use super::*;

    const GPU: &str = "GPU-200b4359-5562-4e0e-ed46-88b581af6524";

    fn placed(table: &str) -> [Option<GpuUuid>; 2] {
        let mut clients = [877, 878].map(|pid| Client {
            pid,
            server: 691,
            gpu: None,
        });
        let gpus = [GPU, "GPU-7dbe9b56-f73b-eee7-0000-000000000000"];
        place(
            &mut clients,
            table,
            &gpus.map(|gpu| GpuUuid::parse(gpu).unwrap()),
        );
        clients.map(|client| client.gpu)
    }

    #[test]
    fn a_client_is_placed_by_the_short_uuid_of_the_recorded_table() {
        // Driver 580.
        let table = "PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND\n\
                     877       11        691            GPU-200b4359-5562-4e0e    4026531836     /tmp/client\n";
        assert_eq!(placed(table), [GpuUuid::parse(GPU).ok(), None]);
        for table in [
            "",
            "Server not found\n",
            "877\n",
            "877 11 691 GPU-\n",
            "877 11 691 GPU-99999999-5562\n",
            "\u{1b}[2J877 11 691 GPU-200b4359-5562-4e0e\n",
            "99999999999999999999 11 691 GPU-200b4359-5562-4e0e\n",
        ] {
            assert_eq!(placed(table), [None, None], "{table:?}");
        }
    }
}
