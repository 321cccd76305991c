//! The tasks of a job that a signal ended. Slurm's plugin notes them in slurmstepd, which waited for them, as root.
//!
//! `/run/mpsd/jobs/<job>/killed`, root 0600: made with the job, a line a task, appended. No user reaches it; all that the
//! job's own can do is to end his tasks.

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Longest file that is written or read. Bytes.
pub const LONGEST: usize = 4096;
/// Longest line.
const LINE: usize = 80;
/// How many are told one by one: who ends a step ends all of its tasks.
const MOST_TOLD: usize = 8;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KilledTask {
    /// Its step; `None`: it is the job's own script or shell.
    pub step: Option<u32>,
    /// Its rank in the step.
    pub rank: u32,
    /// Its pid.
    pub pid: i32,
    /// The signal.
    pub signal: i32,
    /// How many processes of the job the kernel's out-of-memory killer had ended by then; 0 also where nobody can see it.
    #[serde(default)]
    pub oom_kills: u64,
}

impl KilledTask {
    /// Its line, to be appended to a file that has `length` bytes; `None`: that is long enough.
    pub fn line(&self, length: u64) -> Option<String> {
        let room = (LONGEST - LINE) as u64;
        let step = self.step.map_or_else(|| "-".to_owned(), |step| step.to_string());
        let Self {
            rank,
            pid,
            signal,
            oom_kills,
            ..
        } = self;
        (length < room).then(|| format!("{step} {rank} {pid} {signal} {oom_kills}\n"))
    }

    fn of_line(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let task = Self {
            step: match words.next()? {
                "-" => None,
                step => Some(step.parse().ok()?),
            },
            rank: words.next()?.parse().ok()?,
            pid: words.next()?.parse().ok()?,
            signal: words.next()?.parse().ok()?,
            oom_kills: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(task)
    }

    fn place(&self) -> String {
        match self.step {
            Some(step) => format!("task {} of step {step}", self.rank),
            None => "the job's script".to_owned(),
        }
    }
}

/// The tasks of a file; a line that is none, or has no end, is left out.
pub fn parse(bytes: &[u8]) -> Vec<KilledTask> {
    let text = String::from_utf8_lossy(bytes);
    let whole = text
        .split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'));
    whole.filter_map(KilledTask::of_line).collect()
}

/// They in words, in the order of their ends. `is_client`: whether that pid was a client, as far as anybody knows: one may as well be a
/// child of the task's.
pub fn told(tasks: &[KilledTask], is_client: impl Fn(i32) -> bool) -> Vec<String> {
    let one = |task: &KilledTask| {
        let (place, pid, signal) = (task.place(), task.pid, Named(task.signal));
        match is_client(pid) {
            true => format!("client {pid} ({place}) was ended by {signal}"),
            false => format!("{place} (pid {pid}) was ended by {signal}"),
        }
    };
    let mut lines: Vec<String> = tasks.iter().take(MOST_TOLD).map(one).collect();
    if let Some(more @ 1..) = tasks.len().checked_sub(MOST_TOLD) {
        lines.push(format!(
            "{more} more tasks, at least, were ended by signals after these"
        ));
    }
    if let Some(count @ 1..) = tasks.iter().map(|task| task.oom_kills).max() {
        lines.push(format!(
            "the kernel's out-of-memory killer ended processes of the job: {count}"
        ));
    }
    lines
}

/// A signal in words: `signal 9 (SIGKILL)`.
#[derive(Debug, Clone, Copy)]
pub struct Named(pub i32);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Signal::try_from(self.0) {
            Ok(signal) => write!(f, "signal {} ({signal})", self.0),
            Err(_) => write!(f, "signal {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests;
