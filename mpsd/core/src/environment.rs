//! The environment of the job's tasks, from the record. One place for every scheduler.

use super::bind::{Bind, DeviceNames};
use super::failure::Refusal;
use super::gpu::GpuUuid;
use super::job::JobId;
use super::limits::Percent;
use super::paths::{JOBS, SHARED};
use super::ranks::{Cpus, Rank, order_of};
use super::record::{Daemon, Record, RecordDevice, RecordGpu};
use super::text::{count, one_line};
use nix::unistd::{AccessFlags, access};
use std::ffi::OsStr;
use std::path::Path;

pub const PIPE_DIRECTORY: &str = "CUDA_MPS_PIPE_DIRECTORY";
pub const LOG_DIRECTORY: &str = "CUDA_MPS_LOG_DIRECTORY";
pub const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
/// A client's own share; it can only lower the daemon's (docs/facts/mps-control.md#clients).
pub const THREADS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
/// A client's own memory limit. A GPU in it that the client does not see voids every limit
/// (docs/facts/mps-control.md#memory-limits).
pub const MEMORY: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
/// The number of a client's connections to its GPU. The user's own variable: never set or removed.
pub const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
/// A client's connections without the variable (docs/facts/mps-control.md#clients).
pub const USUAL_CONNECTIONS: u32 = 2;
/// A GPU's connections, for all its clients together.
pub(crate) const ALL_CONNECTIONS: u32 = 120;
/// The most that CUDA takes from the variable.
pub(crate) const MOST_CONNECTIONS: u32 = 32;
/// Without it a rank takes the device of its own number (docs/facts/programs.md#jax).
pub const JAX_DEVICES: &str = "JAX_LOCAL_DEVICE_IDS";
const JAX_FIRST: &str = "0";
/// Whether NCCL multicasts over NVLink (docs/facts/programs.md#read-and-not-run).
const NCCL_MULTICAST: &str = "NCCL_NVLS_ENABLE";
/// What tells that a program uses NVSHMEM (docs/facts/programs.md#nvshmem).
const SHMEM: [&str; 4] = [
    "NVSHMEM_SYMMETRIC_SIZE",
    "NVSHMEM_BOOTSTRAP",
    "NVSHMEM_HOME",
    "NVSHMEM_REMOTE_TRANSPORT",
];
/// The job of a task's MPS, which tells what the task inherited from another job.
pub const JOB: &str = "MPSD_JOB";
/// Our `CUDA_VISIBLE_DEVICES`, and after a colon the one before, if any: `qsub -V` carries ours
/// into a job that would have the other without MPS.
pub const DEVICES: &str = "MPSD_DEVICES";
/// Where each launcher has the local rank and the number of ranks. Slurm is last: an MPI launcher
/// inside a step inherits the step's.
const LAUNCHERS: [(&str, &str); 4] = [
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    (OF_SLURM, ""),
];
/// The rank of a task that srun started, and our plugin attached.
pub const OF_SLURM: &str = "SLURM_LOCALID";
/// How srun binds tasks to GPUs, in each task's environment (docs/facts/slurm.md#gpus-of-a-job).
const OF_SRUN: &str = "SLURMD_TRES_BIND";

/// `SLURM_MAX_NORMAL_STEP_ID` of slurm.h; above it are batch scripts, shells and the like.
const FIRST_SPECIAL_STEP: u32 = 0xffff_fff0;

/// Finds a variable's value in the environment of a process.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The rank on its node of the process with this environment, and its launcher's variable. A batch
/// script has Slurm's number too, which its programs inherit.
pub fn rank(lookup: Lookup<'_>) -> Option<(Rank, &'static str)> {
    let number = |name: &str| lookup(name)?.trim().parse().ok();
    // On 26.05 a batch script and an interactive shell have a negative number
    // (docs/facts/slurm.md#environment-of-a-task).
    let in_step = number("SLURM_STEP_ID").is_some_and(|id: u32| id < FIRST_SPECIAL_STEP);
    let launchers = LAUNCHERS.iter();
    let mut launchers = launchers.filter(|(name, _)| in_step || *name != OF_SLURM);
    launchers.find_map(|(name, size)| {
        let (local, of) = (number(name)?, number(size));
        Some((Rank { local, of }, *name))
    })
}

/// Warnings for the first rank of a node with `tasks`, or for a process without a rank.
pub fn warnings(
    record: &Record,
    tasks: Option<u32>,
    rank: Option<u32>,
    lookup: Lookup<'_>,
) -> Vec<String> {
    if rank.unwrap_or(0) != 0 {
        return Vec::new();
    }
    let each = tasks_on_a_gpu(record, tasks);
    let all = [
        connections(tasks, lookup),
        multicast(each, lookup),
        shmem(record, each, lookup),
    ];
    let warning = |text| format!("warning: {text}");
    all.into_iter().flatten().map(warning).collect()
}

fn tasks_on_a_gpu(record: &Record, tasks: Option<u32>) -> u32 {
    let gpus = u32::try_from(record.gpus.len()).unwrap_or(u32::MAX);
    tasks.unwrap_or(1).div_ceil(gpus.max(1))
}

/// Refuses tasks that need more connections than their GPUs have: some would get error 809 or 2.
pub fn expect_connections(
    record: &Record,
    tasks: Option<u32>,
    lookup: Lookup<'_>,
) -> Result<(), Refusal> {
    let Some((each, fit)) = connections_of(lookup) else {
        return Ok(());
    };
    let on_each = tasks_on_a_gpu(record, tasks);
    if on_each <= fit {
        return Ok(());
    }
    let tasks = tasks.unwrap_or(1);
    let gpus = count(record.gpus.len().max(1) as u64, "GPU");
    let why = format!(
        "a GPU takes {fit} MPS clients that hold {each} connections each, and this node has {tasks} tasks on {gpus}"
    );
    let most = (ALL_CONNECTIONS / on_each).max(1);
    let allowed = format!("at most {most}, or no {CONNECTIONS}");
    Err(Refusal::new(format!("{CONNECTIONS}={each}"), why, allowed))
}

/// Connections of each client, if more than usual, and how many such clients a GPU takes.
fn connections_of(lookup: Lookup<'_>) -> Option<(u32, u32)> {
    let each: u32 = lookup(CONNECTIONS)?.trim().parse().ok()?;
    let each = each.min(MOST_CONNECTIONS);
    (each > USUAL_CONNECTIONS).then_some((each, ALL_CONNECTIONS / each))
}

/// A single task may start others.
fn connections(tasks: Option<u32>, lookup: Lookup<'_>) -> Option<String> {
    let (each, fit) = connections_of(lookup).filter(|_| tasks.unwrap_or(1) == 1)?;
    Some(format!(
        "{CONNECTIONS}={each}: a GPU takes {fit} MPS clients that hold as many connections each; others get error 809 or 2"
    ))
}

fn multicast(each: u32, lookup: Lookup<'_>) -> Option<String> {
    (each > 1 && lookup(NCCL_MULTICAST)?.trim() == "1").then(|| {
        format!("{NCCL_MULTICAST}=1: NCCL aborts if several ranks of a communicator share a GPU; allowed: 0, or a GPU for each rank")
    })
}

fn shmem(record: &Record, each: u32, lookup: Lookup<'_>) -> Option<String> {
    let named = SHMEM.into_iter().find(|name| lookup(name).is_some())?;
    let daemons = record.daemons.iter().filter_map(|daemon| daemon.threads);
    let percent = record.rank_threads.iter().copied().chain(daemons).max();
    let sum = u32::from(percent.unwrap_or(Percent::WHOLE).tenths()) * each / 10;
    (each > 1 && sum > 100).then(|| {
        format!(
            "{named}: NVSHMEM refuses team and on-stream calls if the ranks of a GPU have more than 100 % of its threads, and the \
             {each} ranks here have {sum} %; allowed: --mps-threads={}",
            Percent::of(1, each.into())
        )
    })
}

/// For a node's first task, if the user's list by local rank is shorter than its `tasks`.
pub fn repeats(record: &Record, tasks: u32) -> Option<String> {
    let lists = [
        (record.rank_threads.len(), "thread percentages"),
        (record.rank_memory.len(), "memory limits"),
    ];
    let is_short = |(length, _): &(usize, &str)| (2..tasks as usize).contains(length);
    let short = lists.into_iter().filter(is_short);
    let short: Vec<_> = short.map(|(length, of)| format!("{length} {of}")).collect();
    let short = (!short.is_empty()).then(|| short.join(" and "))?;
    Some(format!(
        "{short} by local rank for {tasks} tasks on this node: the list repeats"
    ))
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Task {
    pub rank: Option<Rank>,
    /// Its scheduler, or our plugin, has bound it to its GPUs.
    pub bound: bool,
    /// Its CPUs; `None`: it is this process.
    pub cpus: Option<Cpus>,
    /// Its `CUDA_VISIBLE_DEVICES` as the scheduler set it: UUIDs, or indexes.
    pub visible: Option<String>,
    /// The GPUs that it may open, in CUDA's order: a number in `visible` is a place among them.
    /// `None`: it is the node's own index.
    pub counted: Option<Vec<GpuUuid>>,
    pub inherited_job: Option<String>,
    /// Its list without MPS, for [`DEVICES`]; `None`: it needs no such variable.
    pub without_mps: Option<Visible>,
    /// Its `JAX_LOCAL_DEVICE_IDS`: its user's choice, or what another job's MPS left.
    pub jax_devices: Option<String>,
}

/// The GPUs that this process may open, in the order of the bus; `None`: the record names none. To
/// access(2) the device cgroup answers as to open(2) (Linux: `inode_permission`).
pub fn counted(record: &Record) -> Option<Vec<GpuUuid>> {
    let flags = AccessFlags::R_OK | AccessFlags::W_OK;
    let open = |device: &&RecordDevice| access(&device.file, flags).is_ok();
    let open = record.devices.iter().filter(open);
    (!record.devices.is_empty()).then(|| open.map(|device| device.uuid.clone()).collect())
}

/// Slurm's `none` counts too, unless the job asks us to bind every task.
pub fn is_bound_by_slurm(record: &Record, lookup: Lookup<'_>) -> bool {
    let binds_all = record.bind.is_some_and(Bind::is_for_all);
    let word = lookup(OF_SRUN).unwrap_or_default();
    word.contains("gpu:") && !(binds_all && word.contains("none"))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub name: &'static str,
    /// Its value; `None` removes it.
    pub value: Option<String>,
}

impl Change {
    pub fn set(name: &'static str, value: impl Into<String>) -> Self {
        let value = Some(value.into());
        Self { name, value }
    }

    pub fn unset(name: &'static str) -> Self {
        Self { name, value: None }
    }
}

/// The variables that attach a task to the job's MPS. Refuses a task if its GPU or share is not
/// known.
pub fn task_environment(record: &Record, task: &Task) -> Result<Vec<Change>, Refusal> {
    if record.by_site.is_some() {
        let mut kept = record.clone();
        (kept.bind, kept.by_site) = (None, None);
        let mut changes = task_environment(&kept, task)?;
        changes.retain(|change| match change.name {
            VISIBLE_DEVICES | DEVICES => false,
            // A program would see that it is set.
            JAX_DEVICES => change.value.is_none(),
            _ => true,
        });
        return Ok(changes);
    }
    let visible = visible_gpus(record, task)?;
    let gpus = bound_gpus(record, task, visible)?;
    let daemon = daemon_of(record, &gpus)?;
    let mut changes = vec![
        Change::set(PIPE_DIRECTORY, daemon.pipe.to_string_lossy()),
        Change::set(LOG_DIRECTORY, daemon.log.to_string_lossy()),
        Change::set(JOB, record.job.as_str()),
    ];
    changes.extend(task.sees(names(record, task, daemon, &gpus)));
    let job = task.inherited_job.as_deref();
    let is_foreign = job.is_some_and(|job| job != record.job.as_str());
    changes.extend(of_jax(task, &gpus, is_foreign));
    let threads =
        by_rank(&record.rank_threads, task, "thread percentages")?.map(ToString::to_string);
    let memory = by_rank(&record.rank_memory, task, "memory limits")?.map(|limits| {
        // Only GPUs that this rank sees: any other name drops every limit.
        let own = limits.iter().filter(|(gpu, _)| gpus.contains(gpu));
        let own = own.map(|(gpu, mib)| format!("{}={mib}M", gpu.in_limits()));
        own.collect::<Vec<_>>().join(",")
    });
    for (name, value) in [(THREADS, threads), (MEMORY, memory)] {
        if value.is_some() || is_foreign {
            changes.push(Change { name, value });
        }
    }
    Ok(changes)
}

/// Of the ranks that see one GPU, only the first finds the device of its own number.
fn of_jax(task: &Task, gpus: &[GpuUuid], is_foreign: bool) -> Option<Change> {
    let is_lost = gpus.len() == 1 && task.rank.is_some_and(|rank| rank.local > 0);
    match task.jax_devices.as_deref() {
        None => is_lost.then(|| Change::set(JAX_DEVICES, JAX_FIRST)),
        Some(JAX_FIRST) if is_foreign && !is_lost => Some(Change::unset(JAX_DEVICES)),
        Some(_) => None,
    }
}

/// A value of `CUDA_VISIBLE_DEVICES`; `None`: it is not set.
pub type Visible = Option<String>;

impl Task {
    pub fn sees(&self, devices: String) -> impl Iterator<Item = Change> + use<> {
        let mark = self.without_mps.as_ref().map(|before| match before {
            Some(before) => Change::set(DEVICES, format!("{devices}:{before}")),
            None => Change::set(DEVICES, devices.clone()),
        });
        let list = [Change::set(VISIBLE_DEVICES, devices)];
        list.into_iter().chain(mark)
    }
}

/// The list without our MPS; `scheduled` is the scheduler's own for this job, maybe the same.
pub fn devices_without_mps(lookup: Lookup<'_>, scheduled: &dyn Fn() -> Visible) -> Visible {
    let own = lookup(VISIBLE_DEVICES);
    let Some(mark) = lookup(DEVICES) else {
        return own;
    };
    let (ours, before) = match mark.split_once(':') {
        Some((ours, before)) => (ours, Some(before.to_owned())),
        None => (mark.as_str(), None),
    };
    let is_ours = own.as_deref() == Some(ours) && scheduled() != own;
    if is_ours { before } else { own }
}

/// Takes back the list of GPUs that the MPS of another job left, as [`strip_inherited`].
pub fn strip_devices(lookup: Lookup<'_>, scheduled: &dyn Fn() -> Visible) -> Vec<Change> {
    if lookup(DEVICES).is_none() {
        return Vec::new();
    }
    let name = VISIBLE_DEVICES;
    let value = devices_without_mps(lookup, scheduled);
    let list = (value != lookup(name)).then_some(Change { name, value });
    [Change::unset(DEVICES)].into_iter().chain(list).collect()
}

/// Removes what another job's MPS left (`sbatch` or `qsub -V` inside a job), not the user's own.
pub fn strip_inherited(this_job: Option<&str>, lookup: Lookup<'_>) -> Vec<Change> {
    let Some(other) = lookup(JOB).filter(|job| this_job != Some(job)) else {
        return Vec::new();
    };
    let is_left = |name: &&str| {
        lookup(name).is_some_and(|value| match *name {
            PIPE_DIRECTORY | LOG_DIRECTORY => is_of_job(&value, &other),
            JAX_DEVICES => value == JAX_FIRST,
            _ => true,
        })
    };
    let ours = [PIPE_DIRECTORY, LOG_DIRECTORY, THREADS, MEMORY, JAX_DEVICES];
    let all = [JOB].into_iter().chain(ours);
    all.filter(is_left).map(Change::unset).collect()
}

/// Whether a directory of NVIDIA's programs is that of this job, or of an MPS that it may share.
pub fn is_of_job(path: &str, id: &str) -> bool {
    let Ok(name) = JobId::parse(id).map(|id| id.directory_name()) else {
        return false;
    };
    let parts: Vec<&OsStr> = Path::new(path).iter().collect();
    let own = [OsStr::new(JOBS), OsStr::new(&name)];
    let is_shared =
        |name: &OsStr| JobId::parse(&name.to_string_lossy()).is_ok_and(|id| id.is_shared());
    let mut pairs = parts.windows(2);
    pairs.any(|pair| pair == own || pair[0] == SHARED && is_shared(pair[1]))
}

fn by_rank<'a, T>(list: &'a [T], task: &Task, what: &str) -> Result<Option<&'a T>, Refusal> {
    if list.len() < 2 {
        return Ok(list.first());
    }
    let rank = task.rank.ok_or_else(|| no_rank(what))?.local as usize;
    Ok(list.get(rank % list.len()))
}

fn no_rank(what: &str) -> Refusal {
    let variables = LAUNCHERS.map(|(rank, _)| rank).join(", ");
    let main = "in the job's main shell 'mpsctl env --main'";
    let allowed = format!("a launcher that sets one of {variables}; {main}");
    let what = format!("{what} by local rank");
    Refusal::new(what, "this process has no local rank", allowed)
}

fn visible_gpus(record: &Record, task: &Task) -> Result<Vec<GpuUuid>, Refusal> {
    let list = task.visible.as_deref();
    let Some(list) = list.filter(|list| !list.trim().is_empty()) else {
        let counted = task.counted.as_ref();
        let open = |gpu: &GpuUuid| counted.is_none_or(|counted| counted.contains(gpu));
        let uuids = record.gpus.iter().map(|gpu| gpu.uuid.clone());
        return Ok(uuids.filter(open).collect());
    };
    let entries = list.split(',').map(str::trim);
    let entries = entries.filter(|entry| !entry.is_empty());
    let named = entries.map(|entry| named_gpu(record, task, entry));
    named.collect()
}

fn named_gpu(record: &Record, task: &Task, entry: &str) -> Result<GpuUuid, Refusal> {
    let number = entry.parse::<u32>().ok();
    let counted = number.and_then(|number| task.counted.as_ref()?.get(number as usize));
    let is_named = |gpu: &&RecordGpu| match number {
        None => gpu.uuid.as_str() == entry,
        Some(number) if task.counted.is_none() => gpu.index == number,
        Some(_) => Some(&gpu.uuid) == counted,
    };
    if let Some(gpu) = record.gpus.iter().find(is_named) {
        return Ok(gpu.uuid.clone());
    }
    let gpus = record.gpus.iter();
    let gpus = gpus.map(|gpu| format!("{} ({})", gpu.index, gpu.uuid));
    let meant = match (counted, number.and(task.counted.as_ref())) {
        (Some(uuid), _) => format!(", which is {uuid} here"),
        (None, Some(all)) => format!(", and this process can open {} GPUs", all.len()),
        (None, None) => String::new(),
    };
    let what = format!("{VISIBLE_DEVICES} names '{}'{meant}", one_line(entry, 60));
    let why = "the job's MPS daemon does not serve that GPU";
    Err(Refusal::new(what, why, gpus.collect::<Vec<_>>().join(", ")))
}

fn bound_gpus(record: &Record, task: &Task, gpus: Vec<GpuUuid>) -> Result<Vec<GpuUuid>, Refusal> {
    let requested = record.bind.unwrap_or(Bind::None);
    let tasks = task.rank.and_then(|rank| rank.of);
    let may_use_several = tasks.is_none_or(|tasks| (tasks as usize) < gpus.len());
    let bind = match requested {
        // One process reaches one daemon only.
        _ if record.per_gpu && !requested.is_for_all() => Bind::Cyclic,
        Bind::None => return Ok(gpus),
        // The only process on the node: a program with several GPUs, or a launcher's daemon that
        // starts the ranks later.
        _ if !record.per_gpu && tasks == Some(1) => return Ok(gpus),
        Bind::Auto if task.rank.is_none() || task.bound || may_use_several => return Ok(gpus),
        _ if task.bound && !record.per_gpu => return Ok(gpus),
        _ => requested,
    };
    if gpus.len() < 2 {
        return Ok(gpus);
    }
    // In the record's order, so that a process that is already bound keeps its order.
    let all = record.gpus.iter().filter(|gpu| gpus.contains(&gpu.uuid));
    let all: Vec<&RecordGpu> = all.collect();
    let rank = task.rank.ok_or_else(|| no_rank("a GPU"))?;
    let cpus = match (&task.cpus, bind) {
        (Some(cpus), _) => cpus.clone(),
        (None, Bind::Closest) => Cpus::of_this_process(),
        (None, _) => Cpus::default(),
    };
    let places = order_of(bind, rank, &cpus, &all)?.into_iter();
    Ok(places.map(|place| all[place].uuid.clone()).collect())
}

fn daemon_of<'a>(record: &'a Record, gpus: &[GpuUuid]) -> Result<&'a Daemon, Refusal> {
    let mut daemons = record.daemons.iter();
    let daemon = match record.per_gpu {
        true => daemons.find(|daemon| gpus.first().is_some_and(|gpu| daemon.gpus.contains(gpu))),
        false => daemons.next(),
    };
    let what = || format!("job {}", record.job);
    daemon.ok_or_else(|| Refusal::new(what(), "it has no MPS daemon on this node", ""))
}

/// A daemon shows its GPUs in the order of the bus
/// (docs/facts/mps-control.md#which-gpus-a-client-sees).
fn names(record: &Record, task: &Task, daemon: &Daemon, gpus: &[GpuUuid]) -> String {
    let by_number = match record.names() {
        DeviceNames::Uuid => false,
        DeviceNames::Ordinal => true,
        DeviceNames::Auto => are_numbers_safe(record, task, daemon),
    };
    let number = |gpu: &GpuUuid| {
        let uuids = record.gpus.iter().map(|gpu| &gpu.uuid);
        let mut uuids = uuids.filter(|uuid| daemon.gpus.contains(uuid));
        Some(uuids.position(|uuid| uuid == gpu)?.to_string())
    };
    let numbers = gpus.iter().map(number).collect::<Option<Vec<_>>>();
    let uuids = || gpus.iter().map(ToString::to_string).collect();
    let numbers = numbers.filter(|_| by_number);
    numbers.unwrap_or_else(uuids).join(",")
}

/// Whether the daemon's numbers name the same GPUs to a program that misses the daemon. A compute
/// mode is not enough: it keeps such a program off the job's own GPUs, but number 0 may be another
/// job's GPU.
fn are_numbers_safe(record: &Record, task: &Task, daemon: &Daemon) -> bool {
    if record.is_mig() {
        return false;
    }
    let all = |uuids: &[GpuUuid]| {
        uuids.len() == daemon.gpus.len() && uuids.iter().all(|uuid| daemon.gpus.contains(uuid))
    };
    let job: Vec<GpuUuid> = record.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    let open = task.counted.as_deref();
    let is_free = open.is_none_or(|open| open.len() == record.devices.len());
    open.is_some_and(all) || record.same_numbers && is_free && all(&job)
}

#[cfg(test)]
#[path = "environment_tests.rs"]
mod tests;
