//! The environment of the job's tasks, from the record. One place for every scheduler.

use super::bind::{Bind, BindMode, DeviceNames};
use super::failure::Refusal;
use super::gpu::GpuUuid;
use super::job::JobId;
use super::partitions::{self, Partition};
use super::paths::JOBS;
use super::ranks::{Cpus, Rank, order_of};
use super::record::{Daemon, Record, RecordDevice, RecordGpu};
use super::text::one_line;
use nix::unistd::{AccessFlags, access};
use std::ffi::OsStr;
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
/// Connections that a client holds of its GPU's. The user's own: never set or removed.
const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
/// What a client has without the variable (docs/facts/mps-control.md#clients).
const USUAL_CONNECTIONS: u32 = 2;
/// The job whose MPS a task uses; tells variables inherited from another job.
pub const JOB: &str = "MPSD_JOB";
/// Variables with a launcher's local rank, and with the number of its ranks on the node, in the order they are looked up: an
/// MPI launcher inside a Slurm step inherits the step's own.
const LAUNCHERS: [(&str, &str); 4] = [
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    (OF_SLURM, ""),
];
/// The rank of a task that srun started, and our plugin attached.
pub const OF_SLURM: &str = "SLURM_LOCALID";
/// srun's word for how it binds tasks to GPUs, in the environment of each (docs/facts/slurm.md#gpus-of-a-job).
const OF_SRUN: &str = "SLURMD_TRES_BIND";

/// The rank on its node of the process with this environment, as its launcher names it, and the launcher's variable.
pub fn rank(lookup: &dyn Fn(&str) -> Option<String>) -> Option<(Rank, &'static str)> {
    let number = |name: &str| lookup(name)?.trim().parse().ok();
    LAUNCHERS.iter().find_map(|(name, size)| {
        let (local, of) = (number(name)?, number(size));
        Some((Rank { local, of }, *name))
    })
}

/// What the first rank of a node, or a process without one, is told of its environment: no error, and no reason not to run.
pub fn warning(rank: Option<u32>, lookup: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let connections: u32 = lookup(CONNECTIONS)?.trim().parse().ok()?;
    (rank.unwrap_or(0) == 0 && connections > USUAL_CONNECTIONS).then(|| {
        format!(
            "warning: {CONNECTIONS}={connections}: above {USUAL_CONNECTIONS} a GPU takes fewer MPS clients, each of which holds \
             that many of its connections"
        )
    })
}

/// What is known of one task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Task {
    /// Its rank on this node, from the scheduler or the launcher.
    pub rank: Option<Rank>,
    /// It has the GPUs that it is to have: its scheduler, or our plugin, has bound it.
    pub bound: bool,
    /// Its CPUs; `None`: it is this process.
    pub cpus: Option<Cpus>,
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

/// Whether Slurm has bound the task to GPUs of its own, or was told to bind none where the job leaves that to us.
pub fn is_bound_by_slurm(record: &Record, lookup: &dyn Fn(&str) -> Option<String>) -> bool {
    let asked = record.bind.is_some_and(Bind::is_for_all);
    lookup(OF_SRUN).is_some_and(|word| word.contains("gpu:") && !(asked && word.contains("none")))
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
    let visible = visible_gpus(record, task)?;
    let partition = own_partition(record, task)?;
    let gpus = match partition {
        Some(partition) => vec![gpu_of_partition(record, partition, &visible)?],
        None => bound_gpus(record, task, visible)?,
    };
    let (daemon, gpus) = daemon_of(record, gpus)?;
    let mut changes = vec![
        Change::set(PIPE_DIRECTORY, daemon.pipe.to_string_lossy()),
        Change::set(LOG_DIRECTORY, daemon.log.to_string_lossy()),
        Change::set(JOB, record.job.as_str()),
    ];
    if let Some(list) = names(record, task, daemon, &gpus) {
        changes.push(Change::set(VISIBLE_DEVICES, list));
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
                .map(|(g, mib)| format!("{}={mib}M", g.in_limits()))
                .collect();
            changes.push(Change::set(MEMORY, seen.join(",")));
        }
        None if foreign => changes.push(Change::unset(MEMORY)),
        None => {}
    }
    match partition.and_then(Partition::name) {
        Some(name) => changes.push(Change::set(partitions::VARIABLE, name)),
        // Nobody else's, and not that of a rank that was started before: without one there is no context.
        None if foreign || all_partitions(record).next().is_some() => {
            changes.push(Change::unset(partitions::VARIABLE));
        }
        None => {}
    }
    Ok(changes)
}

/// The removals that free a task of variables which another job's MPS left in its environment
/// (`sbatch` or `qsub -V` from inside a job). Nothing that is not ours is touched.
pub fn strip_inherited(this_job: Option<&str>, lookup: &dyn Fn(&str) -> Option<String>) -> Vec<Change> {
    let Some(inherited) = lookup(JOB) else {
        return Vec::new();
    };
    if this_job == Some(inherited.as_str()) {
        return Vec::new();
    }
    let mut changes = vec![Change::unset(JOB)];
    for name in [PIPE_DIRECTORY, LOG_DIRECTORY] {
        if lookup(name).is_some_and(|value| is_of_job(&value, &inherited)) {
            changes.push(Change::unset(name));
        }
    }
    for name in [THREADS, MEMORY, partitions::VARIABLE] {
        if lookup(name).is_some() {
            changes.push(Change::unset(name));
        }
    }
    changes
}

/// Whether a path lies in the directory of a job with this id: `jobs/ID` below any directory, as another node may have another.
fn is_of_job(path: &str, id: &str) -> bool {
    let Ok(name) = JobId::parse(id).map(|id| id.directory_name()) else {
        return false;
    };
    let parts: Vec<&OsStr> = Path::new(path).iter().collect();
    parts
        .windows(2)
        .any(|pair| pair == [OsStr::new(JOBS), OsStr::new(&name)])
}

fn by_rank<'a, T>(list: &'a [T], task: &Task, what: &str) -> Result<Option<&'a T>, Refusal> {
    if list.is_empty() {
        return Ok(None);
    }
    let rank = task.rank.ok_or_else(|| no_rank(what))?.local as usize;
    Ok(list.get(rank % list.len()))
}

fn no_rank(what: &str) -> Refusal {
    Refusal::new(
        format!("{what} by local rank"),
        "this process has no local rank",
        format!(
            "a launcher that sets one of {}",
            LAUNCHERS.map(|(rank, _)| rank).join(", ")
        ),
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

/// Those that the task keeps of its GPUs, its own first.
fn bound_gpus(record: &Record, task: &Task, gpus: Vec<GpuUuid>) -> Result<Vec<GpuUuid>, Refusal> {
    let asked = record.bind.unwrap_or(Bind::NONE);
    let tasks = task.rank.and_then(|rank| rank.of);
    let may_use_several = tasks.is_none_or(|tasks| (tasks as usize) < gpus.len());
    let bind = match asked.how {
        // One process reaches one daemon only.
        _ if record.per_gpu && !asked.is_for_all() => Bind::of(BindMode::Cyclic),
        BindMode::None => return Ok(gpus),
        // The only process on the node: a program with several GPUs, or a launcher's daemon, whose ranks come after it.
        _ if !record.per_gpu && task.rank.is_some_and(|rank| rank.of == Some(1)) => return Ok(gpus),
        BindMode::Auto if task.rank.is_none() || task.bound || may_use_several => return Ok(gpus),
        BindMode::Auto if !asked.gives_orders(record.names(), record.per_gpu) => return Ok(gpus),
        _ if task.bound && !record.per_gpu => return Ok(gpus),
        _ => asked,
    };
    if gpus.len() < 2 {
        return Ok(gpus);
    }
    if !record.per_gpu && record.names() == DeviceNames::Keep {
        let why = "CUDA_VISIBLE_DEVICES stays as the scheduler set it";
        let what = format!("MPS_BIND={asked}");
        return Err(Refusal::new(what, why, "MPS_VISIBLE=auto, uuid or ordinal"));
    }
    // In the record's order, so that a process bound already comes out as it went in.
    let all: Vec<&RecordGpu> = record
        .gpus
        .iter()
        .filter(|gpu| gpus.contains(&gpu.uuid))
        .collect();
    let rank = task.rank.ok_or_else(|| no_rank("a GPU"))?;
    let cpus = match (&task.cpus, bind.how) {
        (Some(cpus), _) => cpus.clone(),
        (None, BindMode::Closest) => Cpus::of_this_process(),
        (None, _) => Cpus::default(),
    };
    let order = order_of(bind, rank, &cpus, &all)?;
    let seen = if record.per_gpu { 1 } else { order.len() };
    let places = order.into_iter().take(seen);
    Ok(places.map(|place| all[place].uuid.clone()).collect())
}

fn all_partitions(record: &Record) -> impl Iterator<Item = &Partition> {
    record.daemons.iter().flat_map(|daemon| &daemon.partitions)
}

/// The partition of this task, where the job has them; `None` as well for what ranks are started by: a script, or the only
/// process on the node where there are several, which gets no context.
fn own_partition<'a>(record: &'a Record, task: &Task) -> Result<Option<&'a Partition>, Refusal> {
    let what = || "static partitions by local rank".to_owned();
    let local = match (all_partitions(record).count(), task.rank) {
        (0, _) => return Ok(None),
        (1, None) => 0,
        (2.., Some(Rank { of: Some(1), .. })) => return Ok(None),
        (_, None) => return Err(no_rank("static partitions")),
        (_, Some(rank)) => rank.local,
    };
    let own = all_partitions(record).find(|one| one.rank == local);
    let own = own.ok_or_else(|| {
        let why = format!("rank {local} of this node has none");
        Refusal::new(what(), why, "MPS_SMS with a number for each rank")
    })?;
    match own.name() {
        Some(_) => Ok(Some(own)),
        None => Err(Refusal::new(
            what(),
            format!("that of rank {local} was never made"),
            "",
        )),
    }
}

/// The GPU of a partition: the only one that its rank can use.
fn gpu_of_partition(record: &Record, own: &Partition, visible: &[GpuUuid]) -> Result<GpuUuid, Refusal> {
    let what = format!("the static partition of rank {}", own.rank);
    if !visible.contains(&own.gpu) {
        let has: Vec<&str> = visible.iter().map(GpuUuid::as_str).collect();
        let why = format!("it lies on {}, and this task has {}", own.gpu, has.join(", "));
        return Err(Refusal::new(
            what,
            why,
            "tasks that the scheduler binds to no GPU of their own",
        ));
    }
    if visible.len() > 1 && record.names() == DeviceNames::Keep {
        let why = "CUDA_VISIBLE_DEVICES stays as the scheduler set it, with more GPUs than one";
        return Err(Refusal::new(what, why, "MPS_VISIBLE=auto, uuid or ordinal"));
    }
    Ok(own.gpu.clone())
}

/// The daemon of this task and the GPUs that it keeps.
fn daemon_of(record: &Record, gpus: Vec<GpuUuid>) -> Result<(&Daemon, Vec<GpuUuid>), Refusal> {
    let first = gpus.first().filter(|_| record.per_gpu);
    let mut daemons = record.daemons.iter();
    let daemon = match first {
        Some(gpu) => daemons.find(|daemon| daemon.gpus.contains(gpu)),
        None => daemons.next().filter(|_| !record.per_gpu),
    };
    let daemon = daemon.ok_or_else(|| {
        let what = format!("job {}", record.job);
        Refusal::new(what, "it has no MPS daemon on this node", "")
    })?;
    Ok((daemon, gpus))
}

/// `CUDA_VISIBLE_DEVICES` for these GPUs behind their daemon, which shows its GPUs in the order of the bus
/// (docs/facts/mps-control.md#which-gpus-a-client-sees); `None`: as the scheduler set it.
fn names(record: &Record, task: &Task, daemon: &Daemon, gpus: &[GpuUuid]) -> Option<String> {
    let number = |gpu: &GpuUuid| {
        let places = record.gpus.iter().filter(|one| daemon.gpus.contains(&one.uuid));
        let mut uuids = places.map(|one| &one.uuid);
        Some(uuids.position(|uuid| uuid == gpu)?.to_string())
    };
    let by_number = match record.names() {
        DeviceNames::Keep => return None,
        DeviceNames::Uuid => false,
        DeviceNames::Ordinal => true,
        DeviceNames::Auto => are_numbers_safe(record, task, daemon),
    };
    let numbers = gpus.iter().map(number).collect::<Option<Vec<_>>>();
    let uuids = || gpus.iter().map(ToString::to_string).collect();
    Some(numbers.filter(|_| by_number).unwrap_or_else(uuids).join(","))
}

/// Whether the daemon's numbers name the same GPUs to a program that misses it. A compute mode does not do: it keeps such a
/// program off the job's own GPUs, and number 0 may be another job's.
fn are_numbers_safe(record: &Record, task: &Task, daemon: &Daemon) -> bool {
    let all = |uuids: &[GpuUuid]| {
        uuids.len() == daemon.gpus.len() && uuids.iter().all(|uuid| daemon.gpus.contains(uuid))
    };
    let job: Vec<GpuUuid> = record.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    if record.is_mig() {
        return false;
    }
    let open = task.counted.as_deref();
    let is_free = open.is_none_or(|open| open.len() == record.devices.len());
    open.is_some_and(all) || record.same_numbers && is_free && all(&job)
}

#[cfg(test)]
#[path = "environment_tests.rs"]
mod tests;
