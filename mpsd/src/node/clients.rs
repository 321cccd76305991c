//! A job's clients as root sees them for `mpsctl status`: what its control daemons say, asked by a process of its user, and
//! whose rank and what program a process is.

use super::launch::{to_ask, with_spec};
use super::looks::asked;
use super::real::RealNode;
use crate::job::Journal;
use crate::job::spec::{REPORT_FD, Spec};
use crate::sys::deadline::Deadline;
use crate::sys::descriptors::read_line;
use crate::sys::process::Process;
use mpsd_core::text::one_line;
use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd as _;
use std::time::Duration;

/// Longest report of a process of the user's. Bytes.
const LONGEST_REPORT: usize = 256 * 1024;
/// Time for a look at the processes of a job: a user can have one hang.
const LOOK_TIME: Duration = Duration::from_millis(300);
/// So many processes of a job are looked at.
const MOST_PROCESSES: usize = 256;
/// How much of a command line is shown. Characters.
const SHOWN: usize = 120;
/// How much of a command line, and of an environment, is read. Bytes.
const MOST_COMMAND: usize = 4096;
const MOST_ENVIRONMENT: usize = 256 * 1024;
/// Where schedulers and launchers say a task's rank in the job: Slurm, Open MPI, PMIx (PRRTE), Cray PALS, Hydra.
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

/// Those of `pids` that are processes of the user `uid`. Looked at by a child with a deadline; where that hangs, only the
/// names that no process can keep from being read.
pub fn tasks(uid: u32, pids: &[i32]) -> Vec<Task> {
    let pids = pids.get(..MOST_PROCESSES).unwrap_or(pids);
    let all = |look: fn(&Process) -> Task| -> Vec<Task> {
        pids.iter()
            .filter_map(|pid| own(uid, *pid))
            .map(|process| look(&process))
            .collect()
    };
    asked(Deadline::after(LOOK_TIME), || all(task)).unwrap_or_else(|| all(named))
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

impl RealNode {
    /// What the control daemons of a job say, in one line of its user's own making; `None`: nothing in time. The process
    /// that asks them is the user's, as the daemons are.
    pub fn ask_daemons(&self, journal: &Journal, limit: Duration) -> Option<Vec<u8>> {
        let deadline = Deadline::after(limit);
        let daemons = u32::try_from(journal.daemons.len().max(1)).unwrap_or(u32::MAX);
        let each = (limit * 3 / 4 / daemons).as_millis();
        let spec = to_ask(journal, u64::try_from(each).unwrap_or(u64::MAX));
        self.asked_as_user(journal, &spec, &["--look"], deadline)
    }

    /// What the job's `mpsd` answers to who wants `limits` set, likewise.
    pub fn set_limits(&self, journal: &Journal, limits: &str, limit: Duration) -> Option<Vec<u8>> {
        let spec = to_ask(journal, 0);
        self.asked_as_user(journal, &spec, &["--set", limits], Deadline::after(limit))
    }

    /// The line that `mpsd`, run as the job's user with these arguments, reports.
    fn asked_as_user(
        &self,
        journal: &Journal,
        spec: &Spec,
        args: &[&str],
        deadline: Deadline,
    ) -> Option<Vec<u8>> {
        let (report, theirs) = pipe2(OFlag::O_CLOEXEC).ok()?;
        let mut spawn = with_spec(self, journal, spec, args).ok()?;
        spawn.inherit.push((theirs, REPORT_FD));
        let mut child = spawn.start(deadline).ok()?;
        let line = read_line(report.as_fd(), deadline, LONGEST_REPORT).ok().flatten();
        child.kill(Deadline::after(Duration::from_millis(200)));
        line
    }
}
