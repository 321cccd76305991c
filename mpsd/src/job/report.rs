//! A job's report, written at its end: what root found, and beside it the observations of the job's
//! own `mpsd`.

use super::prepared::User;
use mpsd_core::advice::{self, Advice, Facts};
use mpsd_core::failure::FailureKind;
use mpsd_core::killed::KilledTask;
use mpsd_core::observations::Observations;
use mpsd_core::record::{Daemon, RecordGpu};
use mpsd_core::text::one_line;
use mpsd_core::{Failure, JobId, Scheduler};
use mpsd_sys::now;
use serde::{Deserialize, Serialize};

pub const VERSION: u32 = 1;
const MOST_LINES: usize = 32;
const LONGEST_LINE: usize = 500;
const AGAIN: &str = "looked at again ";

#[derive(Debug, Clone, Copy)]
pub enum JobOutcome<'a> {
    Ended(&'a JobReport),
    /// Its start failed: counted only.
    Failed(FailureKind),
    /// Counted only, because the job's report may be written already.
    Drained,
    /// For its user. Root keeps no such report: it would push out one of a job with MPS.
    NotStarted(&'a JobReport),
}

/// `/var/lib/mpsd/reports/<job>.<began>.json`, root 0600.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobReport {
    pub version: u32,
    pub job: JobId,
    pub scheduler: Scheduler,
    pub node: String,
    pub user: String,
    pub uid: u32,
    pub gpus: Vec<RecordGpu>,
    pub daemons: Vec<Daemon>,
    /// Why `MPS=auto` gave MPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto: Option<String>,
    /// Its GPUs were to be EXCLUSIVE_PROCESS.
    pub exclusive: bool,
    /// Its MPS served other jobs of the user as well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// Seconds since 1970.
    pub began: u64,
    /// Milliseconds from before the plan until its MPS was proved ready; `None`: it never was.
    pub ready_ms: Option<u64>,
    /// Seconds since 1970.
    pub ended: u64,
    pub teardown_ms: u64,
    /// The node is as it was before the job, compute modes too.
    pub as_before: bool,
    /// Findings of the end that prove nothing.
    pub undetermined: Vec<String>,
    pub faults: Vec<String>,
    /// Unusual steps of the end, such as a context that stayed.
    pub notes: Vec<String>,
    /// Tasks that a signal ended. Only Slurm's plugin can tell.
    #[serde(default)]
    pub killed: Vec<KilledTask>,
    pub drain: Option<String>,
    #[serde(default)]
    pub drained: bool,
    /// Why its start failed; such a report has little else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_started: Option<String>,
    /// The scheduler may give its GPUs to other jobs, and its MPS is its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub takes_turns: bool,
    /// The word of a process of the job's user: root has proved none of it.
    pub said_by_user: Option<Observations>,
    /// By the user's word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<Advice>,
}

impl JobReport {
    /// None for a shared MPS, whose clients are of several jobs.
    pub fn advise(&self) -> Option<Advice> {
        let seen = self.said_by_user.as_ref().filter(|_| !self.shared)?;
        advice::of(&Facts {
            gpus: &self.gpus,
            daemons: &self.daemons,
            takes_turns: self.takes_turns,
            seen,
        })
    }

    pub fn summary(&self) -> Option<String> {
        let text = self.said_by_user.as_ref()?.summary(&self.gpus, self.shared);
        Some(format!(
            "job {}: {text}; mpsctl report {}",
            self.job,
            self.job.whole()
        ))
    }

    /// A job that is started again under its id has a new name.
    pub fn file_name(&self) -> String {
        format!("{}.{}.json", self.job.directory_name(), self.began)
    }

    pub fn not_started(
        job: &JobId,
        scheduler: Scheduler,
        node: &str,
        user: &User,
        failure: &Failure,
    ) -> Self {
        Self {
            not_started: lines([failure]).pop(),
            ..Self::new(job, scheduler, node, (&user.name, user.uid))
        }
    }

    /// Of a job that began and ended now, without MPS.
    pub(super) fn new(
        job: &JobId,
        scheduler: Scheduler,
        node: &str,
        (user, uid): (&str, u32),
    ) -> Self {
        let now = now();
        Self {
            version: VERSION,
            job: job.clone(),
            scheduler,
            node: node.to_owned(),
            user: user.to_owned(),
            uid,
            gpus: Vec::new(),
            daemons: Vec::new(),
            auto: None,
            exclusive: false,
            shared: false,
            began: now,
            ready_ms: None,
            ended: now,
            teardown_ms: 0,
            as_before: true,
            undetermined: Vec::new(),
            faults: Vec::new(),
            notes: Vec::new(),
            killed: Vec::new(),
            drain: None,
            drained: false,
            not_started: None,
            takes_turns: false,
            said_by_user: None,
            advice: None,
        }
    }

    /// NVML was asked, and never listed a client on one of its GPUs.
    pub fn had_idle_gpu(&self) -> bool {
        let observed = self.said_by_user.as_ref();
        observed.is_some_and(|said| !said.gpus.is_empty() && said.gpus.len() < self.gpus.len())
    }

    /// The later end of a job after an `earlier` one, whose findings stay. An end that left the
    /// node as before is a job's last: this report is another job's then.
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
            advice: earlier.advice,
            ..self
        }
    }
}

fn joined(mut first: Vec<String>, second: Vec<String>) -> Vec<String> {
    for line in second {
        if first.len() < MOST_LINES && !first.contains(&line) {
            first.push(line);
        }
    }
    first
}

/// Seconds since 1970, by a report's file name; `None`: it is none.
pub fn began(file_name: &str) -> Option<u64> {
    let (_, began) = file_name.strip_suffix(".json")?.rsplit_once('.')?;
    began.parse().ok()
}

pub fn limits(daemon: &Daemon) -> Option<String> {
    let threads = daemon.threads.map(|threads| format!("threads {threads} %"));
    let mut all: Vec<String> = threads.into_iter().collect();
    let memory = daemon.memory.iter();
    all.extend(memory.map(|(gpu, mib)| format!("memory {mib}M of {gpu}")));
    let priority = daemon.priority;
    all.extend(priority.map(|priority| format!("priority {priority}")));
    (!all.is_empty()).then(|| all.join(", "))
}

pub fn lines<T: ToString>(of: impl IntoIterator<Item = T>) -> Vec<String> {
    let line = |line: T| one_line(&line.to_string(), LONGEST_LINE);
    of.into_iter().take(MOST_LINES).map(line).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use mpsd_core::Refusal;
    use mpsd_core::testing::{record_gpu, uuid};

    /// The report of a job with one GPU that began at 1000 and had limits of threads and memory.
    pub fn report() -> JobReport {
        let user = User {
            name: "alice".to_owned(),
            uid: 1000,
            gid: 1000,
        };
        let (job, none) = (JobId::parse("7").unwrap(), Refusal::new("", "", "").into());
        JobReport {
            gpus: vec![record_gpu(0)],
            daemons: vec![Daemon {
                threads: Some("25".parse().unwrap()),
                memory: vec![(uuid(0), 1024)],
                ..Daemon::default()
            }],
            exclusive: true,
            began: 1000,
            ready_ms: Some(210),
            ended: 1060,
            teardown_ms: 120,
            not_started: None,
            ..JobReport::not_started(&job, Scheduler::Slurm, "n1", &user, &none)
        }
    }
}
