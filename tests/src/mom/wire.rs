//! What a test orders of the agent inside a simulated node, and the agent's answers: one line of JSON each.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An environment.
pub fn variables(rows: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    rows.iter().map(owned).collect()
}

/// An order to the agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Start a process and, unless it is left in the background, wait for its end.
    Run(Box<Run>),
    /// Wait for a process that was left in the background.
    Wait {
        /// Its pid inside the node.
        pid: i32,
        /// The longest wait, in ms.
        limit_ms: u64,
    },
    /// Send a signal to one process.
    Signal {
        /// Its pid inside the node.
        pid: i32,
        /// The signal's number.
        signal: i32,
    },
    /// Send SIGKILL to everything in the mom's cgroup, as a restart of its unit does.
    KillMom,
    /// Whether a process still holds the other end of a descriptor that the mom passed on.
    Held {
        /// The answer's `started` of the run that got the descriptor.
        pid: i32,
    },
    /// Read a file.
    Read {
        /// Its path inside the node.
        path: String,
    },
    /// Write a file, and the directories above it.
    Write {
        /// Its path inside the node.
        path: String,
        /// Its text.
        text: String,
        /// Its mode.
        mode: u32,
    },
    /// Every file of the node that is not as the node began, with its size class; and every process.
    Snapshot,
}

/// A process as a mom starts one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// Program (absolute), its `argv[0]` and arguments.
    pub argv: Vec<String>,
    /// The file to execute, if it is not `argv[0]`.
    pub program: Option<String>,
    /// Its whole environment.
    pub env: BTreeMap<String, String>,
    /// Working directory.
    pub cwd: String,
    /// umask.
    pub umask: u32,
    /// User and groups (primary first); none: root.
    pub user: Option<(u32, Vec<u32>)>,
    /// Standard input.
    pub stdin: Stream,
    /// Standard output.
    pub stdout: Stream,
    /// Standard error.
    pub stderr: Stream,
    /// Numbers of further descriptors that the mom leaks into it. The mom keeps their other ends.
    pub leaked: Vec<i32>,
    /// A session and process group of its own.
    pub session: bool,
    /// SIGHUP is ignored (OpenPBS).
    pub ignore_hangup: bool,
    /// Put it into the mom's cgroup.
    pub in_mom: bool,
    /// Demand what pbs_mom demands of a script: root's, regular, u+rx, not writable by others. A missing script is success.
    pub checked: bool,
    /// Leave it in the background.
    pub background: bool,
    /// Time limit in ms, 0 for none.
    pub limit_ms: u64,
    /// Who is killed at the limit.
    pub at_limit: Victims,
    /// Send SIGKILL to the process group after its end, also after success (OpenPBS).
    pub kill_group_after: bool,
}

/// One of the three standard descriptors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    /// `/dev/null`.
    #[default]
    Null,
    /// Not open at all.
    Closed,
    /// This file; output is appended.
    File(String),
    /// The terminal of an interactive job. The first run that names it makes it.
    Terminal,
}

/// Who is killed at a time limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Victims {
    /// The process alone.
    #[default]
    Process,
    /// Every process of its session (Torque).
    Session,
    /// Its process group (OpenPBS).
    Group,
}

/// The agent's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// A process was left in the background, with this pid.
    Started(i32),
    /// A process ended.
    Ended(Ended),
    /// Text of a file; none: no such file.
    Text(Option<String>),
    /// Yes or no.
    Bool(bool),
    /// See [`Order::Snapshot`].
    Snapshot(Snapshot),
    /// Done.
    Done,
    /// It could not be done.
    Failed(String),
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// At its time limit, by the mom's SIGKILL.
    Limit,
    /// It was never started: bad owner or mode.
    BadScript,
    /// There was no such script, which counts as success.
    NoScript,
    /// It still runs.
    Running,
}

/// What is in a node besides what it began with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Paths, each with type and mode.
    pub files: Vec<String>,
    /// Command lines of the processes other than the agent's.
    pub processes: Vec<String>,
}
