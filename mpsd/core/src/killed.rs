//! The tasks of a job that a signal ended. Slurm's plugin notes them as root, in the slurmstepd
//! that waited for them. `/run/mpsd/jobs/<job>/killed`, root 0600, has a line of JSON a task. No user
//! reaches the file.

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Longest file that is written or read, bytes.
pub const LONGEST: usize = 8192;
const LINE: usize = 120;
const MOST_TOLD: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KilledTask {
    /// Its step; `None`: it is the job's own script or shell.
    pub step: Option<u32>,
    pub rank: u32,
    pub pid: i32,
    pub signal: i32,
    /// Processes that the kernel had ended for lack of memory; 0 also if that cannot be seen.
    #[serde(default)]
    pub oom_kills: u64,
}

impl KilledTask {
    /// Its line for the end of a file that has `length` bytes; `None`: the file is full.
    pub fn line(&self, length: u64) -> Option<String> {
        let line = serde_json::to_string(self).ok()? + "\n";
        (length < (LONGEST - LINE) as u64).then_some(line)
    }

    fn place(&self) -> String {
        match self.step {
            Some(step) => format!("task {} of step {step}", self.rank),
            None => "the job's script".to_owned(),
        }
    }
}

/// The tasks of a file. A line that is no task, or has no end, is left out.
pub fn parse(bytes: &[u8]) -> Vec<KilledTask> {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let whole = lines.filter_map(|line| line.strip_suffix(b"\n"));
    let tasks = whole.map(serde_json::from_slice);
    tasks.filter_map(Result::ok).collect()
}

/// The tasks in words; `is_client` knows the pids of clients, which may be children of tasks.
pub fn told(tasks: &[KilledTask], is_client: impl Fn(i32) -> bool) -> Vec<String> {
    let one = |task: &KilledTask| {
        let (place, pid, signal) = (task.place(), task.pid, SignalName(task.signal));
        match is_client(pid) {
            true => format!("client {pid} ({place}) was ended by {signal}"),
            false => format!("{place} (pid {pid}) was ended by {signal}"),
        }
    };
    let mut lines: Vec<String> = tasks.iter().take(MOST_TOLD).map(one).collect();
    if let Some(more @ 1..) = tasks.len().checked_sub(MOST_TOLD) {
        let which = "more tasks, at least, were ended by signals after these";
        lines.push(format!("{more} {which}"));
    }
    if let Some(count @ 1..) = tasks.iter().map(|task| task.oom_kills).max() {
        let what = "the kernel's out-of-memory killer ended processes of the job";
        lines.push(format!("{what}: {count}"));
    }
    lines
}

#[derive(Debug, Clone, Copy)]
pub struct SignalName(pub i32);

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Signal::try_from(self.0) {
            Ok(signal) => write!(f, "signal {} ({signal})", self.0),
            Err(_) => write!(f, "signal {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(rank: u32, signal: i32) -> KilledTask {
        KilledTask {
            step: Some(0),
            rank,
            pid: 8349 + i32::try_from(rank).unwrap(),
            signal,
            oom_kills: 0,
        }
    }

    #[test]
    fn what_is_written_is_read_and_what_is_no_line_is_left_out() {
        let script = KilledTask {
            step: None,
            oom_kills: 2,
            ..task(0, 15)
        };
        let all = [task(3, 9), script];
        let text: String = all.iter().filter_map(|task| task.line(0)).collect();
        assert_eq!(parse(text.as_bytes()), all);
        let cut = text.trim_end();
        let garbled = format!("{text}0 1 2\n{{\"rank\":-1}}\n\n\u{1b}[m\n{cut}");
        assert_eq!(text.lines().count(), 2);
        let all = [&all[..], &all[..1]].concat();
        assert_eq!(parse(garbled.as_bytes()), all, "the last has no end");
    }

    #[test]
    fn the_file_ends_before_its_longest() {
        let long = KilledTask {
            step: Some(u32::MAX),
            rank: u32::MAX,
            pid: i32::MIN,
            signal: i32::MIN,
            oom_kills: u64::MAX,
        };
        let mut file = String::new();
        while let Some(line) = long.line(file.len() as u64) {
            assert!(line.len() <= LINE, "{line}");
            file += &line;
        }
        let length = file.len();
        assert!((LONGEST - 2 * LINE..=LONGEST).contains(&length), "{length}");
    }

    #[test]
    fn a_client_is_named_with_its_task_and_only_the_first_tasks_are_named() {
        let all = [task(3, 9), task(2, 64)];
        let lines = [
            "client 8352 (task 3 of step 0) was ended by signal 9 (SIGKILL)",
            "task 2 of step 0 (pid 8351) was ended by signal 64",
        ];
        assert_eq!(told(&all, |pid| pid == 8352), lines);
        let mut many: Vec<KilledTask> = (0..48).map(|rank| task(rank, 9)).collect();
        (many[0].oom_kills, many[1].oom_kills) = (1, 2);
        let last = [
            "40 more tasks, at least, were ended by signals after these",
            "the kernel's out-of-memory killer ended processes of the job: 2",
        ];
        assert_eq!(told(&many, |_| false)[8..], last);
        assert!(told(&[], |_| true).is_empty());
    }
}
