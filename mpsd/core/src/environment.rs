//! The environment of the job's tasks, from the record. One place for every scheduler.

use super::failure::Refusal;
use super::gpu::GpuUuid;
use super::record::{Daemon, Record, RecordDevice};
use super::text::one_line;
use nix::unistd::{AccessFlags, access};
use std::path::Path;

/// Where a client looks for its control daemon.
pub const PIPE_DIRECTORY: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// Where the vendor's programs log.
pub const LOG_DIRECTORY: &str = "CUDA_MPS_LOG_DIRECTORY";
/// Devices that a CUDA program sees.
pub const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
/// A client's own thread percentage; it can only lower the daemon's (docs/facts/mps-control.md#clients).
pub const THREADS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
/// A client's own memory limit. A name of a GPU that the client does not see drops every limit
/// (docs/facts/mps-control.md#memory-limits).
pub const MEMORY: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
/// The job whose MPS a task uses; tells variables inherited from another job.
pub const JOB: &str = "MPSD_JOB";
/// Variables with a launcher's local rank, in the order they are looked up: an MPI launcher inside a Slurm step inherits
/// the step's own.
const LOCAL_RANKS: [&str; 4] = [
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PALS_LOCAL_RANKID",
    "SLURM_LOCALID",
];

/// The rank on its node of the process with this environment, as the launchers name it.
pub fn local_rank(lookup: &dyn Fn(&str) -> Option<String>) -> Option<u32> {
    LOCAL_RANKS
        .iter()
        .find_map(|name| lookup(name)?.trim().parse().ok())
}

/// What is known of one task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Task {
    /// Its rank on this node, from the scheduler or the launcher.
    pub local_rank: Option<u32>,
    /// Its `CUDA_VISIBLE_DEVICES` as the scheduler set it: UUIDs, or indexes.
    pub visible: Option<String>,
    /// The GPUs that it may open, in the order in which CUDA counts them: indexes in `visible` are places here. None: they
    /// are the node's own indexes.
    pub counted: Option<Vec<GpuUuid>>,
    /// `MPSD_JOB` as inherited.
    pub inherited_job: Option<String>,
}

/// The GPUs of the node that this process may open, in the order of the bus; `None` where the record does not name them.
/// The device cgroup answers access(2) as it would answer open(2) (Linux: `inode_permission`), and nothing is opened.
pub fn counted(record: &Record) -> Option<Vec<GpuUuid>> {
    let flags = AccessFlags::R_OK | AccessFlags::W_OK;
    let open = |device: &&RecordDevice| access(&device.file, flags).is_ok();
    let open = record.devices.iter().filter(open);
    (!record.devices.is_empty()).then(|| open.map(|device| device.uuid.clone()).collect())
}

/// One variable to set, or to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Name of the variable.
    pub name: &'static str,
    /// Its value; `None` removes it.
    pub value: Option<String>,
}

impl Change {
    fn set(name: &'static str, value: impl Into<String>) -> Self {
        Self {
            name,
            value: Some(value.into()),
        }
    }

    fn unset(name: &'static str) -> Self {
        Self { name, value: None }
    }
}

/// The changes to a task's environment that attach it to the job's MPS.
///
/// # Errors
/// A refusal when the task's GPU cannot be told (a list or per-gpu mode without a local rank, a device that is not
/// the job's).
pub fn task_environment(record: &Record, task: &Task) -> Result<Vec<Change>, Refusal> {
    let gpus = visible_gpus(record, task)?;
    let (daemon, gpus) = daemon_of(record, task, gpus)?;
    let mut changes = vec![
        Change::set(PIPE_DIRECTORY, daemon.pipe.to_string_lossy()),
        Change::set(LOG_DIRECTORY, daemon.log.to_string_lossy()),
        Change::set(JOB, record.job.as_str()),
    ];
    if record.uuids {
        let list: Vec<&str> = gpus.iter().map(GpuUuid::as_str).collect();
        changes.push(Change::set(VISIBLE_DEVICES, list.join(",")));
    }
    let foreign = task
        .inherited_job
        .as_deref()
        .is_some_and(|job| job != record.job.as_str());
    match by_rank(&record.rank_threads, task, "thread percentages")? {
        Some(percent) => changes.push(Change::set(THREADS, percent.to_string())),
        None if foreign => changes.push(Change::unset(THREADS)),
        None => {}
    }
    match by_rank(&record.rank_memory, task, "memory limits")? {
        // Only GPUs that this rank sees: any other name drops every limit.
        Some(limits) => {
            let seen: Vec<String> = limits
                .iter()
                .filter(|(g, _)| gpus.contains(g))
                .map(|(g, mib)| format!("{g}={mib}M"))
                .collect();
            changes.push(Change::set(MEMORY, seen.join(",")));
        }
        None if foreign => changes.push(Change::unset(MEMORY)),
        None => {}
    }
    Ok(changes)
}

/// The removals that free a task of variables which another job's MPS left in its environment
/// (`sbatch` or `qsub -V` from inside a job). `jobs` is the directory of all jobs; nothing that is not ours is touched.
pub fn strip_inherited(
    jobs: &Path,
    this_job: Option<&str>,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Vec<Change> {
    let Some(inherited) = lookup(JOB) else {
        return Vec::new();
    };
    if this_job == Some(inherited.as_str()) {
        return Vec::new();
    }
    let mut changes = vec![Change::unset(JOB)];
    for name in [PIPE_DIRECTORY, LOG_DIRECTORY] {
        if lookup(name).is_some_and(|value| Path::new(&value).starts_with(jobs)) {
            changes.push(Change::unset(name));
        }
    }
    for name in [THREADS, MEMORY] {
        if lookup(name).is_some() {
            changes.push(Change::unset(name));
        }
    }
    changes
}

fn by_rank<'a, T>(list: &'a [T], task: &Task, what: &str) -> Result<Option<&'a T>, Refusal> {
    if list.is_empty() {
        return Ok(None);
    }
    let rank = task.local_rank.ok_or_else(|| no_rank(what))? as usize;
    Ok(list.get(rank % list.len()))
}

fn no_rank(what: &str) -> Refusal {
    Refusal::new(
        format!("{what} by local rank"),
        "this process has no local rank",
        format!("a launcher that sets one of {}", LOCAL_RANKS.join(", ")),
    )
}

/// The job's GPUs that this task may see.
fn visible_gpus(record: &Record, task: &Task) -> Result<Vec<GpuUuid>, Refusal> {
    let open = |gpu: &GpuUuid| task.counted.as_ref().is_none_or(|counted| counted.contains(gpu));
    let all = || {
        let uuids = record.gpus.iter().map(|g| g.uuid.clone());
        uuids.filter(open).collect()
    };
    let Some(list) = task.visible.as_deref().filter(|v| !v.trim().is_empty()) else {
        return Ok(all());
    };
    let mut gpus = Vec::new();
    for entry in list.split(',').map(str::trim).filter(|e| !e.is_empty()) {
        gpus.push(named_gpu(record, task, entry)?);
    }
    Ok(gpus)
}

fn named_gpu(record: &Record, task: &Task, entry: &str) -> Result<GpuUuid, Refusal> {
    let of_job = |uuid: &GpuUuid| record.gpus.iter().find(|g| g.uuid == *uuid);
    let found = match entry.parse::<u32>() {
        Ok(number) => match &task.counted {
            None => record.gpus.iter().find(|g| g.index == number),
            Some(counted) => counted.get(number as usize).and_then(of_job),
        },
        Err(_) => record.gpus.iter().find(|g| g.uuid.as_str() == entry),
    };
    found.map(|g| g.uuid.clone()).ok_or_else(|| {
        let have: Vec<String> = record
            .gpus
            .iter()
            .map(|g| format!("{} ({})", g.index, g.uuid))
            .collect();
        let number = entry.parse::<usize>().ok();
        let meant = number.and_then(|number| task.counted.as_ref()?.get(number));
        let meant = meant
            .map(|uuid| format!(", which is {uuid} here"))
            .unwrap_or_default();
        Refusal::new(
            format!("{VISIBLE_DEVICES} names '{}'{meant}", one_line(entry, 60)),
            "the job's MPS daemon does not serve that GPU",
            have.join(", "),
        )
    })
}

/// The daemon of this task and the GPUs that it keeps: in per-gpu mode one process reaches one daemon only.
fn daemon_of<'a>(
    record: &'a Record,
    task: &Task,
    gpus: Vec<GpuUuid>,
) -> Result<(&'a Daemon, Vec<GpuUuid>), Refusal> {
    let none = || {
        Refusal::new(
            format!("job {}", record.job),
            "it has no MPS daemon on this node",
            "",
        )
    };
    if !record.per_gpu {
        return Ok((record.daemons.first().ok_or_else(none)?, gpus));
    }
    let gpu = match gpus.as_slice() {
        [one] => one.clone(),
        [] => return Err(none()),
        several => {
            let rank = task
                .local_rank
                .ok_or_else(|| no_rank("one daemon for each GPU"))? as usize;
            several[rank % several.len()].clone()
        }
    };
    let daemon = record
        .daemons
        .iter()
        .find(|d| d.gpus.contains(&gpu))
        .ok_or_else(none)?;
    Ok((daemon, vec![gpu]))
}

#[cfg(test)]
mod tests;
