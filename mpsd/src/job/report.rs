//! A job's report: what root saw of it, written at its end, and beside it what the job's own `mpsd` says it saw.

use mpsd_core::killed::KilledTask;
use mpsd_core::observations::Observations;
use mpsd_core::record::{Daemon, RecordGpu};
use mpsd_core::text::one_line;
use mpsd_core::{JobId, Scheduler};
use serde::{Deserialize, Serialize};

/// Version of the format.
pub const VERSION: u32 = 1;
/// Most lines of a kind, and the longest of them. Characters.
const MOST_LINES: usize = 32;
const LONGEST_LINE: usize = 500;
/// How the note of a later end begins.
const AGAIN: &str = "looked at again ";

/// `/var/lib/mpsd/reports/<job>.<began>.json`, root 0600.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobReport {
    /// [`VERSION`].
    pub version: u32,
    /// The job, or the step with a daemon of its own.
    pub job: JobId,
    /// Who scheduled it.
    pub scheduler: Scheduler,
    /// The node's name in the scheduler.
    pub node: String,
    /// Its user.
    pub user: String,
    /// The user's number.
    pub uid: u32,
    /// Its GPUs.
    pub gpus: Vec<RecordGpu>,
    /// Its control daemons with their limits.
    pub daemons: Vec<Daemon>,
    /// Its GPUs were to be EXCLUSIVE_PROCESS.
    pub exclusive: bool,
    /// Seconds since 1970 at which it began.
    pub began: u64,
    /// From then until its MPS was proved ready; `None`: it never was.
    pub ready_ms: Option<u64>,
    /// Seconds since 1970 at which its end was reached.
    pub ended: u64,
    /// How long its end took.
    pub teardown_ms: u64,
    /// The node is as it was before the job, compute modes too.
    pub as_before: bool,
    /// What was found at the end and proves nothing.
    pub undetermined: Vec<String>,
    /// Evidence against the node.
    pub faults: Vec<String>,
    /// What was done at the end beyond the usual: processes that had to be ended, contexts that stayed, a mode left alone.
    pub notes: Vec<String>,
    /// Tasks that a signal ended, as far as the scheduler has its own processes wait for them under our eyes: Slurm.
    #[serde(default)]
    pub killed: Vec<KilledTask>,
    /// What became of the drain, where there was one.
    pub drain: Option<String>,
    /// Its scheduler has taken the drain.
    #[serde(default)]
    pub drained: bool,
    /// The word of the job's own `mpsd`, a process of its user's: root has proved none of it.
    pub said_by_user: Option<Observations>,
}

impl JobReport {
    /// Its file's name: a job that was started anew under its id has another one.
    pub fn file_name(&self) -> String {
        file_name(&self.job, self.began)
    }

    /// Somebody looked, and saw no client on one of its GPUs at any time.
    pub fn had_idle_gpu(&self) -> bool {
        let looked = self
            .said_by_user
            .as_ref()
            .filter(|observed| !observed.gpus.is_empty());
        looked.is_some_and(|observed| observed.gpus.len() < self.gpus.len())
    }

    /// This report of a later end, together with the `earlier` one of the same job: what was found, done and said at the
    /// first end stays, and the later one says how the node is now. After an end that left the node as before there is
    /// none: then this is another job's.
    pub fn after(self, earlier: Self) -> Self {
        if earlier.as_before
            || (earlier.version, &earlier.job, earlier.uid) != (self.version, &self.job, self.uid)
        {
            return self;
        }
        let is = if self.as_before { "is" } else { "is not" };
        let later = self.ended.saturating_sub(earlier.ended);
        let look = format!(
            "{AGAIN}{later} s later, for {} ms: the node {is} as before",
            self.teardown_ms
        );
        let mut notes = earlier.notes;
        notes.retain(|note| !note.starts_with(AGAIN));
        let mut notes = joined(notes, self.notes);
        notes.truncate(MOST_LINES - 1);
        notes.push(look);
        let is_first = earlier.drain.is_some() && (earlier.drained || !self.drained);
        let (drain, drained) = match is_first {
            true => (earlier.drain, earlier.drained),
            false => (self.drain, self.drained),
        };
        Self {
            ended: earlier.ended,
            teardown_ms: earlier.teardown_ms,
            undetermined: joined(earlier.undetermined, self.undetermined),
            faults: joined(earlier.faults, self.faults),
            notes,
            drain,
            drained,
            killed: earlier.killed,
            said_by_user: earlier.said_by_user,
            ..self
        }
    }
}

/// The lines of two ends, each once.
fn joined(mut first: Vec<String>, second: Vec<String>) -> Vec<String> {
    for line in second {
        if first.len() < MOST_LINES && !first.contains(&line) {
            first.push(line);
        }
    }
    first
}

/// When the job of the report with this file name began, seconds since 1970; `None`: it is no report's.
pub fn began(file_name: &str) -> Option<u64> {
    file_name.strip_suffix(".json")?.rsplit_once('.')?.1.parse().ok()
}

/// The name of the report of `job`, which began at `began`, seconds since 1970.
pub fn file_name(job: &JobId, began: u64) -> String {
    format!("{}.{began}.json", job.directory_name())
}

/// The limits of each client of `daemon`, in words; `None`: it has none.
pub fn limits(daemon: &Daemon) -> Option<String> {
    let threads = daemon.threads.map(|threads| format!("threads {threads} %"));
    let memory = daemon
        .memory
        .iter()
        .map(|(gpu, mib)| format!("memory {mib}M of {gpu}"));
    let priority = daemon.priority.map(|priority| format!("priority {priority}"));
    let partitions = daemon.partitions.iter();
    let partitions = partitions.map(|one| format!("rank {}: {} SMs of {} alone", one.rank, one.sms, one.gpu));
    let all = threads
        .into_iter()
        .chain(memory)
        .chain(priority)
        .chain(partitions);
    let all: Vec<String> = all.collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// So many of these lines, each printable, as a report has.
pub fn lines<T: ToString>(of: impl IntoIterator<Item = T>) -> Vec<String> {
    let lines = of.into_iter().take(MOST_LINES);
    lines
        .map(|line| one_line(&line.to_string(), LONGEST_LINE))
        .collect()
}
