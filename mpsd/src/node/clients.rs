//! A job's clients as root sees them for `mpsctl status`: whose rank and what program a process is.

use super::by_child;
use crate::sys::deadline::Deadline;
use crate::sys::process::Process;
use mpsd_core::text::one_line;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Time for a look at the processes of a job: a user can make one hang.
const LOOK_TIME: Duration = Duration::from_millis(300);
const MOST_PROCESSES: usize = 256;
/// How much of a command line is shown. Characters.
const SHOWN: usize = 120;
/// How much of a command line, and of an environment, is read. Bytes.
const MOST_COMMAND: usize = 4096;
const MOST_ENVIRONMENT: usize = 256 * 1024;
/// A task's rank in the job, as schedulers and launchers say it: Slurm, Open MPI, PMIx (PRRTE), Cray PALS, Hydra.
const RANKS: [&str; 5] = [
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PALS_RANKID",
    "PMI_RANK",
];

/// A process of a job's user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Its pid.
    pub pid: i32,
    /// Its rank in the job, by its own first environment.
    pub rank: Option<u32>,
    /// Its command line, on one line without control characters.
    pub command: String,
}

/// Whether `pid` is a process of the user `uid`. No process can keep that from being read.
pub fn is_of(uid: u32, pid: i32) -> bool {
    own(uid, pid).is_some()
}

fn own(uid: u32, pid: i32) -> Option<Process> {
    Process::find(pid).filter(|p| p.uids().is_some_and(|u| u.effective == uid))
}

/// Those of `pids` that are processes of the user `uid`. A child with a deadline looks at them. If that hangs, they have
/// only the names that no process can keep from being read.
pub fn tasks(uid: u32, pids: &[i32]) -> Vec<Task> {
    let pids = pids.get(..MOST_PROCESSES).unwrap_or(pids);
    let all = |look: fn(&Process) -> Task| -> Vec<Task> {
        let own = pids.iter().filter_map(|pid| own(uid, *pid));
        own.map(|process| look(&process)).collect()
    };
    by_child(Deadline::after(LOOK_TIME), || all(task)).unwrap_or_else(|_| all(named))
}

fn task(process: &Process) -> Task {
    let rank = |name: &&str| {
        let value = process.environment_variable(name, MOST_ENVIRONMENT)?;
        value.to_str()?.trim().parse().ok()
    };
    let line = process.command_line(MOST_COMMAND).unwrap_or_default();
    let words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let command = words.collect::<Vec<_>>().join(" ");
    Task {
        rank: RANKS.iter().find_map(rank),
        command: one_line(command.trim_end(), SHOWN),
        ..named(process)
    }
}

fn named(process: &Process) -> Task {
    let name = process.stat().map(|stat| stat.name).unwrap_or_default();
    Task {
        pid: process.id().pid,
        rank: None,
        command: one_line(&name.to_string_lossy(), SHOWN),
    }
}
