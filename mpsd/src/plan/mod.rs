//! Request + settings + inventory → plan, or the reason why not. Pure: no I/O, no clock.

pub mod decide;
pub mod effects;
pub mod gpus;
pub mod share;
pub mod tasks;

use crate::plan::effects::{DaemonPlan, Effect, Plan};
use crate::scheduler::{Devices, Exclusive};
use mpsd_core::config::{Cgroup, ComputeModeRule, GpusUnknown, Settings, TooManyTasks};
use mpsd_core::request::{Mode, Request};
use mpsd_core::{ComputeMode, Failure, Gpu, GpuUuid, Inventory, JobId, Refusal};

/// Most clients on a GPU before Volta (facts: peers, §8).
const CLIENTS_BEFORE_VOLTA: u32 = 16;

/// What the site decided, as far as a plan depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Set EXCLUSIVE_PROCESS where it is proved safe; else every mode stays.
    pub set_exclusive: bool,
    /// A job whose GPUs the scheduler does not name gets the node's, if the node is its alone.
    pub whole_node_if_exclusive: bool,
    /// More tasks on a GPU than it takes clients: refuse, else warn.
    pub refuse_too_many_tasks: bool,
    /// Clients that a GPU takes.
    pub max_clients: u32,
    /// Jobs get a cgroup of their own.
    pub cgroup: bool,
}

impl From<&Settings> for Rules {
    fn from(settings: &Settings) -> Self {
        Self {
            set_exclusive: settings.compute_mode == ComputeModeRule::Exclusive,
            whole_node_if_exclusive: settings.gpus_unknown == GpusUnknown::WholeNodeIfExclusive,
            refuse_too_many_tasks: settings.too_many_tasks == TooManyTasks::Refuse,
            max_clients: settings.max_clients,
            cgroup: settings.cgroup != Cgroup::None,
        }
    }
}

/// All that a plan is made from.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// The job, or the step.
    pub job: &'a JobId,
    /// Its user.
    pub uid: u32,
    /// A step's daemon: the compute mode always stays.
    pub step: bool,
    /// What is asked for, defaults and ceilings applied.
    pub request: &'a Request,
    /// What the scheduler gave.
    pub devices: &'a Devices,
    /// What the node has.
    pub inventory: &'a Inventory,
    /// What the site decided.
    pub rules: Rules,
}

/// The plan for one job on this node.
///
/// # Errors
/// A refusal for what cannot be done; a fault when a GPU that the scheduler gave is not there.
pub fn plan(case: &Case<'_>) -> Result<Plan, Failure> {
    let gpus = gpus::of_job(case.devices, case.inventory, case.rules)?;
    let mut notes = Vec::new();
    check_generations(case.request.mode, &gpus)?;
    check_tasks(case, &gpus, &mut notes)?;
    let share = share::Share::of(case.request, &gpus, tasks_per_gpu(case.devices, gpus.len()))?;
    let groups: Vec<Vec<&Gpu>> = match case.request.mode {
        Mode::PerGpu => gpus.iter().map(|gpu| vec![*gpu]).collect(),
        Mode::PerNode | Mode::Off => vec![gpus.clone()],
    };
    let daemons: Vec<DaemonPlan> = groups.iter().map(|group| share.daemon(group)).collect();
    let effects = effects(case, &gpus, daemons.len(), &mut notes);
    Ok(Plan {
        job: case.job.clone(),
        uid: case.uid,
        daemons,
        rank_threads: share.rank_threads,
        rank_memory: share.rank_memory,
        effects,
        notes,
        verify: case.request.verify == Some(true),
    })
}

fn effects(case: &Case<'_>, gpus: &[&Gpu], daemons: usize, notes: &mut Vec<String>) -> Vec<Effect> {
    let mut effects = Vec::new();
    for gpu in gpus {
        effects.push(Effect::ClaimGpu {
            gpu: gpu.uuid.clone(),
        });
        match why_mode_stays(case, gpu) {
            None => effects.push(Effect::SetComputeMode {
                gpu: gpu.uuid.clone(),
                mode: ComputeMode::ExclusiveProcess,
            }),
            Some(why) => notes.push(format!("compute mode of {} stays {}: {why}", gpu.uuid, gpu.mode)),
        }
    }
    if case.rules.cgroup {
        effects.push(Effect::MakeCgroup);
    }
    effects.extend((0..daemons).map(|daemon| Effect::MakeDirectories { daemon }));
    effects.push(Effect::StartDaemon);
    effects
}

fn why_mode_stays(case: &Case<'_>, gpu: &Gpu) -> Option<&'static str> {
    if !case.rules.set_exclusive {
        Some("compute_mode = \"keep\"")
    } else if case.step {
        Some("a step does not change it")
    } else if gpu.mode != ComputeMode::Default {
        Some("only DEFAULT is changed")
    } else {
        match case.devices.exclusive {
            Exclusive::GpusAlone => None,
            Exclusive::Shared => Some("the scheduler lets jobs share the GPU"),
            Exclusive::Unknown => Some("the scheduler does not prove that this job alone holds the GPU"),
        }
    }
}

/// A daemon that sees GPUs of mixed generation serves the newer ones only, and says nothing (facts: peers, (c) 4).
fn check_generations(mode: Mode, gpus: &[&Gpu]) -> Result<(), Refusal> {
    let Some(old) = gpus.iter().find(|gpu| !gpu.is_volta_or_later()) else {
        return Ok(());
    };
    let Some(new) = gpus.iter().find(|gpu| gpu.is_volta_or_later()) else {
        return Ok(());
    };
    if mode == Mode::PerGpu {
        return Ok(());
    }
    Err(Refusal::new(
        format!("one MPS daemon for '{}' and '{}'", old.name, new.name),
        "one daemon serves only GPUs before Volta, or only later ones",
        "MPS=per-gpu, one daemon for each GPU",
    ))
}

/// Tasks of the job on each of its `gpus` GPUs, rounded up, where the scheduler tells.
pub fn tasks_per_gpu(devices: &Devices, gpus: usize) -> Option<u32> {
    let gpus = u32::try_from(gpus.max(1)).unwrap_or(u32::MAX);
    devices
        .tasks_on_node
        .filter(|tasks| *tasks > 0)
        .map(|tasks| tasks.div_ceil(gpus))
}

fn check_tasks(case: &Case<'_>, gpus: &[&Gpu], notes: &mut Vec<String>) -> Result<(), Refusal> {
    let Some(tasks) = tasks_per_gpu(case.devices, gpus.len()) else {
        return Ok(());
    };
    let volta = gpus.iter().all(|gpu| gpu.is_volta_or_later());
    let most = if volta {
        case.rules.max_clients
    } else {
        CLIENTS_BEFORE_VOLTA.min(case.rules.max_clients)
    };
    if tasks <= most {
        return Ok(());
    }
    let why = format!("a GPU takes {most} MPS clients, and this job has {tasks} tasks on each");
    if case.rules.refuse_too_many_tasks {
        let what = format!(
            "{} tasks on {} GPUs",
            case.devices.tasks_on_node.unwrap_or(0),
            gpus.len()
        );
        return Err(Refusal::new(what, why, format!("at most {most} tasks a GPU")));
    }
    notes.push(format!("{why}; those beyond fail if all of them use it"));
    Ok(())
}

/// The GPUs of a plan, for the record: each with its index on the node.
pub fn indexed<'a>(plan: &'a Plan, inventory: &'a Inventory) -> impl Iterator<Item = (u32, &'a GpuUuid)> {
    plan.gpus()
        .map(|uuid| (inventory.by_uuid(uuid).map_or(0, |gpu| gpu.index), uuid))
}
