//! What root tells the job's `mpsd`, and what it reports.

use mpsd_core::record::Daemon;
use std::path::PathBuf;

/// The descriptor on which `mpsd` finds its [`Spec`].
pub const SPEC_FD: i32 = 3;
/// The descriptor on which `mpsd` writes its [`Report`].
pub const REPORT_FD: i32 = 4;

/// What to do with a client that holds more memory than its limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OverLimit {
    /// Nothing is watched.
    #[default]
    Off,
    /// A line in the job's log.
    Log,
    /// `terminate_client`.
    Terminate,
}

/// All that `mpsd` needs; nothing of it is secret, and root believes none of it back.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Spec {
    /// The job, for messages.
    pub job: String,
    /// The job's user.
    pub uid: u32,
    /// The vendor's control program.
    pub control: PathBuf,
    /// The NVML library, for the memory watch.
    pub nvml: String,
    /// The daemons.
    pub daemons: Vec<Daemon>,
    /// Time for all of them to be ready, milliseconds.
    pub start_ms: u64,
    /// Time for one control command, milliseconds.
    pub command_ms: u64,
    /// What to do with a client over its memory limit.
    pub over_limit: OverLimit,
}

/// One daemon as `mpsd` saw it become ready. Root checks the pids itself.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReadyDaemon {
    /// Pid of the control daemon.
    pub control: i32,
    /// Pid of the server.
    pub server: i32,
}

/// What `mpsd` tells the prologue, one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "report", rename_all = "lowercase")]
pub enum Report {
    /// Every daemon is ready and every limit was read back.
    Ready {
        /// The daemons, in the order of the specification.
        daemons: Vec<ReadyDaemon>,
        /// Milliseconds from the start of `mpsd`.
        ms: u64,
    },
    /// It did not work.
    Failed {
        /// One line: what failed, why.
        reason: String,
        /// The end of the vendor's log.
        tail: Vec<String>,
    },
}
