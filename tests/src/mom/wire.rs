//! A test's orders to the agent inside a node of the bed.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub fn variables(rows: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    rows.iter().map(owned).collect()
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    Run(Box<Run>),
    Start(Box<Run>),
    Wait {
        pid: i32,
        limit_ms: u64,
    },
    Signal {
        pid: i32,
        signal: i32,
    },
    /// Send SIGKILL to everything in the mom's cgroup, as a restart of its unit does.
    KillMom,
    /// Whether a process still holds the other end of a descriptor that the mom passed on.
    Held {
        pid: i32,
    },
    Read {
        path: String,
    },
    Write {
        path: String,
        text: String,
        mode: u32,
    },
    /// Files that differ from the node's beginning, with their size class, and every process.
    Snapshot,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    pub argv: Vec<String>,
    /// The file to execute, if it is not `argv[0]`.
    pub program: Option<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: String,
    pub umask: u32,
    /// User and groups (primary first); `None`: root.
    pub user: Option<(u32, Vec<u32>)>,
    pub stdin: Stream,
    pub stdout: Stream,
    pub stderr: Stream,
    /// The user who makes the output's files; `None`: the jobs' usual user.
    pub output_of: Option<u32>,
    pub leaked: Vec<i32>,
    pub session: bool,
    pub in_mom: bool,
    /// As pbs_mom demands: root's, regular, u+rx, not writable by others. A missing one is success.
    pub checked: bool,
    pub limit_ms: u64,
    pub at_limit: Victims,
    /// Send SIGKILL to the process group after its end, also after success (OpenPBS).
    pub kill_group_after: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    #[default]
    Null,
    File(String),
    Terminal,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Victims {
    #[default]
    Process,
    Session,
    Group,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    Code(i32),
    Signal(i32),
    /// At its time limit, by the mom's SIGKILL.
    Limit,
    /// It was never started: bad owner or mode.
    BadScript,
    NoScript,
    Running,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    pub files: Vec<String>,
    pub processes: Vec<String>,
}
