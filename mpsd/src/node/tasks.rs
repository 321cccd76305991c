//! The processes of users: the job of each, and what `mpsctl status` shows of it.

use super::by_child;
use mpsd_core::JobId;
use mpsd_core::environment::JOB;
use mpsd_core::text::{is_digits, is_word, one_line};
use mpsd_sys::deadline::Deadline;
use mpsd_sys::process::Process;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

/// Bytes.
pub(super) const MOST_ENVIRONMENT: usize = 256 * 1024;
/// To read the processes of a job: a user can make it hang.
const TASKS_TIME: Duration = Duration::from_millis(300);
const MOST_PROCESSES: usize = 256;
const SHOWN: usize = 120;
const MOST_COMMAND: usize = 4096;
/// A task's rank in the job, as launchers and schedulers say it: Open MPI, PMIx (PRRTE), Cray PALS,
/// Hydra, Slurm. Slurm is last: the ranks that an MPI launcher starts in a batch script or a step
/// inherit that one's.
const RANKS: [&str; 5] = [
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PALS_RANKID",
    "PMI_RANK",
    "SLURM_PROCID",
];

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub pid: i32,
    pub rank: Option<u32>,
    pub command: String,
    /// If the task or its scheduler tells it.
    pub job: Option<String>,
}

pub type BySluid<'a> = dyn Fn(&str) -> Option<JobId> + 'a;

/// How a scheduler's cgroup names a job (docs/facts/slurm.md#cgroups-of-a-job,
/// docs/facts/pbs.md#cgroups-of-a-job).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CgroupName {
    Id(JobId),
    /// Slurm from 26.05 on: root's record says which job it is.
    Sluid(String),
}

impl CgroupName {
    pub fn job(self, by_sluid: &BySluid<'_>) -> Option<JobId> {
        match self {
            Self::Id(job) => Some(job),
            Self::Sluid(sluid) => by_sluid(&sluid),
        }
    }
}

pub fn cgroup_name(process: &Process) -> Option<CgroupName> {
    by_cgroup(process).map(|(job, _)| job)
}

/// `job` may be a step with a daemon of its own. `sluid`: what root recorded of the job.
pub fn is_in_cgroup_of(process: &Process, job: &JobId, sluid: Option<&str>) -> bool {
    let is_its = |name: &str| (sluid == Some(name)).then(|| job.whole());
    let Some((name, step)) = by_cgroup(process) else {
        return false;
    };
    let whole = name.job(&is_its);
    let step = || whole.as_ref()?.step(&step?).ok();
    whole.as_ref() == Some(job) || step().as_ref() == Some(job)
}

fn by_cgroup(process: &Process) -> Option<(CgroupName, Option<String>)> {
    process.cgroups()?.iter().find_map(|path| by_path(path))
}

/// The job and the step: `job_12/step_0` or `sEKNKTV3WPV500/step_0` of Slurm, `torque/12.srv` of
/// Torque, `pbs_jobs.service/jobid/12.srv` of OpenPBS' hook. Root makes these. A user's own
/// directories lie below them, or in `user.slice`, so the outermost name counts.
fn by_path(path: &Path) -> Option<(CgroupName, Option<String>)> {
    if path.starts_with("/user.slice") {
        return None;
    }
    let parts: Vec<&str> = path.iter().filter_map(OsStr::to_str).collect();
    (1..=parts.len()).find_map(|depth| {
        let (above, below) = parts.split_at(depth);
        let step = below.first().and_then(|next| next.strip_prefix("step_"));
        let id = match above {
            [.., "torque", id] => Some(*id),
            [.., service, "jobid", id] if service.ends_with(".service") => Some(*id),
            [.., last] => last.strip_prefix("job_").filter(|id| is_digits(id)),
            [] => None,
        };
        let name = match (id, above.last()) {
            (Some(id), _) => CgroupName::Id(JobId::parse(id).ok()?),
            (None, Some(last)) if step.is_some() && is_word(last, b"") => {
                CgroupName::Sluid((*last).to_owned())
            }
            (None, _) => return None,
        };
        Some((name, step.map(str::to_owned)))
    })
}

pub fn is_of(uid: u32, pid: i32) -> bool {
    own(uid, pid).is_some()
}

fn own(uid: u32, pid: i32) -> Option<Process> {
    Process::find(pid).filter(|p| p.uids().is_some_and(|u| u.effective == uid))
}

/// Those of `uid` among `pids`, read by a child with a deadline. If that fails, the result has only
/// the processes' names, which none can hide.
pub fn tasks(uid: u32, pids: &[i32], by_sluid: &BySluid<'_>) -> Vec<Task> {
    let pids = pids.get(..MOST_PROCESSES).unwrap_or(pids);
    let all = |look: &dyn Fn(&Process) -> Task| -> Vec<Task> {
        let own = pids.iter().filter_map(|pid| own(uid, *pid));
        own.map(|process| look(&process)).collect()
    };
    let full = || all(&|process| task(process, by_sluid));
    by_child(Deadline::after(TASKS_TIME), full).unwrap_or_else(|_| all(&named))
}

fn task(process: &Process, by_sluid: &BySluid<'_>) -> Task {
    let rank = |name: &&str| {
        let value = process.environment_variable(name, MOST_ENVIRONMENT)?;
        value.to_str()?.trim().parse().ok()
    };
    let line = process.command_line(MOST_COMMAND).unwrap_or_default();
    let words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let command = words.collect::<Vec<_>>().join(" ");
    // By its scheduler's cgroup, or else by the variable that attached it, which its user can
    // forge.
    let job = match cgroup_name(process) {
        Some(name) => name.job(by_sluid).map(String::from),
        None => process
            .environment_variable(JOB, MOST_ENVIRONMENT)
            .and_then(|told| told.into_string().ok()),
    };
    Task {
        rank: RANKS.iter().find_map(rank),
        job: job.map(|job| one_line(&job, SHOWN)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_directory_of_a_schedulers_own_names_a_job() {
        // The user's own directories from the ninth row on, and then what no scheduler made.
        let table = "
            /system.slice/slurmstepd.scope/job_12/step_3/user/task_0 > 12 3
            /slurm/uid_1001/job_12/step_batch > 12 batch
            /slurm_node1/uid_1001/job_12 > 12 -
            /system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_3/user/task_0 > sEKNKTV3WPV500 3
            /torque/12.srv.example > 12.srv.example -
            /torque/12[3].srv/R0.t1 > 12[3].srv -
            /pbs_jobs.service/jobid/12.srv > 12.srv -
            /sites_own.service/jobid/12[3].srv/below > 12[3].srv -
            /torque/12.srv/torque/13.srv/job_14 > 12.srv -
            /slurm/uid_1001/job_12/job_13/step_0 > 12 -
            /slurmstepd.scope/sEKNK/step_0/user/sOTHER/step_1/job_14/step_0 > sEKNK 0
            /user.slice/user-1001.slice/user@1001.service/jobid/12.srv > none
            /user.slice/user-1001.slice/user@1001.service/job_12/step_0 > none
            /system.slice/job_runner.service > none
            /system.slice/12.srv > none
            /system.slice/step_ca.service > none
            /system.slice/slurmstepd.scope/system > none
            /system.slice/jobid/12.srv > none
            /torque > none
            / > none";
        for (path, found) in table.lines().filter_map(|row| row.trim().split_once(" > ")) {
            let told = by_path(Path::new(path)).map(|(job, step)| {
                let job = match job {
                    CgroupName::Id(job) => job.to_string(),
                    CgroupName::Sluid(sluid) => sluid,
                };
                format!("{job} {}", step.as_deref().unwrap_or("-"))
            });
            assert_eq!(told.as_deref().unwrap_or("none"), found, "{path}");
        }
    }
}
