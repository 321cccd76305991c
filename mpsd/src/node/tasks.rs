//! The processes of users: of which job each is, and what `mpsctl status` shows of it.

use super::by_child;
use crate::sys::deadline::Deadline;
use crate::sys::process::Process;
use mpsd_core::JobId;
use mpsd_core::environment::JOB;
use mpsd_core::text::one_line;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::path::{Component, PathBuf};
use std::time::Duration;

/// Longest environment that is read, bytes.
pub(super) const MOST_ENVIRONMENT: usize = 256 * 1024;
/// Time to read the processes of a job for `mpsctl status`: a user can make it hang.
const TASKS_TIME: Duration = Duration::from_millis(300);
const MOST_PROCESSES: usize = 256;
const SHOWN: usize = 120;
const MOST_COMMAND: usize = 4096;
/// A task's rank in the job, as schedulers and launchers say it: Slurm, Open MPI, PMIx (PRRTE), Cray PALS, Hydra.
const RANKS: [&str; 5] = [
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PALS_RANKID",
    "PMI_RANK",
];

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub pid: i32,
    pub rank: Option<u32>,
    pub command: String,
    /// Its job, if it or its scheduler tells.
    pub job: Option<String>,
}

/// The job of a process, by its scheduler's cgroup or else by the variable that attached it, which its user can forge. Hangs as
/// [`Process::environment_variable`].
fn job_of(process: &Process) -> Option<String> {
    let by_itself = || {
        process
            .environment_variable(JOB, MOST_ENVIRONMENT)?
            .into_string()
            .ok()
    };
    job_by_cgroup(process).or_else(|| Some(one_line(&by_itself()?, SHOWN)))
}

/// The job of a process by its scheduler's cgroup: Slurm's is `job_12`, that of OpenPBS' hook is
/// `pbs_jobs.service/jobid/12.srv`.
pub fn job_by_cgroup(process: &Process) -> Option<String> {
    let of_path = |path: &PathBuf| {
        let parts: Vec<&str> = path.iter().filter_map(OsStr::to_str).collect();
        let of_slurm = parts.iter().find_map(|part| part.strip_prefix("job_"));
        let of_pbs = || parts.windows(3).find(|three| three[0].starts_with("pbs_jobs"));
        Some(one_line(of_slurm.or_else(|| Some(of_pbs()?[2]))?, SHOWN))
    };
    process.cgroups()?.iter().find_map(of_path)
}

/// Whether a process is in the scheduler's own cgroup of `job`, a directory named after it. The job's user cannot move a
/// process into one: Slurm's and those of pbs_cgroups are root's. A step with a daemon of its own has its own directory there.
pub fn is_in_cgroup_of(process: &Process, job: &JobId) -> bool {
    let (id, whole) = (job.as_str(), job.whole());
    let number = id.split('.').next().unwrap_or(id);
    let names = [format!("job_{number}"), id.to_owned(), format!("pbs_jobs.{id}")];
    let step = id.strip_prefix(whole.as_str());
    let step = step.and_then(|rest| rest.strip_prefix('.'));
    let step = step.map(|number| format!("step_{number}"));
    let is_jobs = |part: Component| names.iter().any(|name| part.as_os_str() == name.as_str());
    let is_steps = |part: Component| step.as_ref().is_none_or(|step| part.as_os_str() == step.as_str());
    let is_here = |path: &PathBuf| path.components().any(is_jobs) && path.components().any(is_steps);
    process.cgroups().unwrap_or_default().iter().any(is_here)
}

pub fn is_of(uid: u32, pid: i32) -> bool {
    own(uid, pid).is_some()
}

fn own(uid: u32, pid: i32) -> Option<Process> {
    Process::find(pid).filter(|p| p.uids().is_some_and(|u| u.effective == uid))
}

/// The processes of `uid` among `pids`, read by a child with a deadline. If that hangs, they have only their names, which
/// no process can hide.
pub fn tasks(uid: u32, pids: &[i32]) -> Vec<Task> {
    let pids = pids.get(..MOST_PROCESSES).unwrap_or(pids);
    let all = |look: fn(&Process) -> Task| -> Vec<Task> {
        let own = pids.iter().filter_map(|pid| own(uid, *pid));
        own.map(|process| look(&process)).collect()
    };
    by_child(Deadline::after(TASKS_TIME), || all(task)).unwrap_or_else(|_| all(named))
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
        job: job_of(process),
        command: one_line(command.trim_end(), SHOWN),
        ..named(process)
    }
}

fn named(process: &Process) -> Task {
    let name = process.stat().map(|stat| stat.name).unwrap_or_default();
    Task {
        pid: process.id().pid,
        rank: None,
        job: None,
        command: one_line(&name.to_string_lossy(), SHOWN),
    }
}
