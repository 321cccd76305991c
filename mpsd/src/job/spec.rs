//! What root tells the job's `mpsd`, and what it reports.

use super::journal::Journal;
use mpsd_core::config::{MemoryOverLimit, Settings};
use mpsd_core::record::{self, Daemon};
use mpsd_core::{GpuUuid, JobId, Paths};
use mpsd_sys::deadline::Deadline;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

pub const SPEC_FD: i32 = 3;
/// The descriptor on which `mpsd` writes its [`StartReport`].
pub const REPORT_FD: i32 = 4;

/// The descriptor on which `mpsd` writes what it saw, over and over ([`mpsd_core::observations`]).
pub const OBSERVATIONS_FD: i32 = 5;

/// Nothing of it is secret, and root never reads it back.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Spec {
    pub job: JobId,
    pub uid: u32,
    pub control: PathBuf,
    pub nvml: String,
    /// With the records of the jobs that share the daemons.
    #[serde(default)]
    pub run: PathBuf,
    pub daemons: Vec<Daemon>,
    /// For all of them, milliseconds.
    pub start_ms: u64,
    pub command_ms: u64,
    pub over_limit: MemoryOverLimit,
    /// Look at what the job's GPUs do, for its report.
    #[serde(default)]
    pub usage: bool,
    /// Look for programs outside the MPS; not in a job by site.
    #[serde(default)]
    pub outside: bool,
}

pub(super) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Spec {
    pub fn paths(&self) -> Paths {
        Paths::new(&self.run, "")
    }

    /// `None`: the daemons are one job's.
    pub fn sharers_file(&self) -> Option<PathBuf> {
        let is_shared = self.job.is_shared();
        is_shared.then(|| self.paths().job(&self.job).sharers())
    }

    pub fn sharers(&self) -> BTreeSet<JobId> {
        let list = self.sharers_file();
        list.map_or_else(BTreeSet::new, |list| record::sharers(&list))
    }

    pub fn gpus(&self) -> Vec<GpuUuid> {
        let gpus = self.daemons.iter().flat_map(|daemon| &daemon.gpus);
        gpus.cloned().collect()
    }

    pub fn command_time(&self) -> Duration {
        Duration::from_millis(self.command_ms)
    }

    /// For an `mpsd` that only asks the daemons, `command_ms` for each command.
    pub fn to_ask(journal: &Journal, command_ms: u64) -> Self {
        Self {
            job: journal.job().clone(),
            uid: journal.uid(),
            control: journal.control.clone(),
            nvml: journal.nvml.clone(),
            run: PathBuf::new(),
            daemons: journal.record().daemons.clone(),
            start_ms: 0,
            command_ms,
            over_limit: MemoryOverLimit::Ignore,
            usage: false,
            outside: false,
        }
    }

    /// For the job's `mpsd`; the whole start must have ended by `deadline`.
    pub fn to_start(journal: &Journal, settings: &Settings, deadline: Deadline) -> Self {
        // The rest is kept for the rollback.
        let start = deadline.remaining() * 3 / 5;
        Self {
            run: settings.paths.run().to_owned(),
            start_ms: ms(start),
            over_limit: settings.memory_over_limit,
            usage: settings.reports.keep > 0,
            outside: journal.record().by_site.is_none(),
            ..Self::to_ask(journal, ms(start / 2))
        }
    }
}

/// As `mpsd` saw it. Root checks the pids itself.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReadyDaemon {
    pub control: i32,
    pub server: i32,
}

/// One line of JSON: the daemons in the order of the specification, once each is ready with its
/// limits read back; else why the job has no MPS. A forged reason harms only the forger's own job.
pub type StartReport = Result<Vec<ReadyDaemon>, String>;
