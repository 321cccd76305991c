//! Request + settings + inventory → plan, or the reason why not. Pure: no I/O, no clock.

pub mod effects;
mod gpus;
mod mig;
mod partitions;
mod share;
pub(crate) mod tasks;

use crate::plan::effects::{Effect, Exporter, Plan};
use crate::plan::share::{Share, ShareRequest};
use crate::scheduler::{self, Devices, Exclusive, Submission};
use mpsd_core::bind::DeviceNames;
use mpsd_core::config::{Cgroup, ComputeModeRule, Config, Settings, WarnOrRefuse};
use mpsd_core::paths::JobPaths;
use mpsd_core::record::{AutoDivisors, Daemon, RecordGpu};
use mpsd_core::request::{MemoryLimit, Mode, Request, Syntax, Threads};
use mpsd_core::{ComputeMode, Failure, Gpu, Inventory, Refusal};
use std::path::PathBuf;

/// A job that asked for MPS.
#[derive(Debug, Clone)]
pub struct JobRequest {
    /// What it asked for, as written.
    pub request: Request,
    /// How the user wrote it, for messages.
    pub syntax: Syntax,
    /// What the scheduler says of it.
    pub submission: Submission,
}

/// All that a plan is made from.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// The site's file.
    pub config: &'a Config,
    /// The node's name in the scheduler.
    pub node: &'a str,
    /// The job and its request.
    pub asked: &'a JobRequest,
    /// Its user.
    pub uid: u32,
    /// What the scheduler gave.
    pub devices: &'a Devices,
    /// What the node has.
    pub inventory: &'a Inventory,
}

/// The settings in force for a node with these GPUs, and the plan for the job under them.
///
/// # Errors
/// A refusal for what cannot be done; a fault for an unusable configuration, or when a GPU that the scheduler gave is not
/// there.
pub fn decide(case: &Case<'_>) -> Result<(Settings, Plan), Failure> {
    let products: Vec<&str> = case.inventory.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    let settings = case.config.for_node(case.node, &products)?;
    let gpus = gpus::of_job(case.devices, case.inventory, settings.gpus_unknown)?;
    let tasks = tasks_that_meet(case.devices, gpus.len(), u32::div_ceil);
    let mut notes = Vec::new();
    let mut request = settings.with_defaults(&case.asked.request);
    let (bind, names) = mig::binding(&case.asked.request, case.asked.syntax, &request, &settings, &gpus)?;
    if mig::has_devices(&gpus) && gpus.len() > 1 && request.mode != Mode::PerGpu {
        request.mode = Mode::PerGpu;
        notes.push(
            "one daemon for each MIG device, and one of them for each task: a process sees no more"
                .to_owned(),
        );
    }
    let meeting = tasks_that_meet(case.devices, gpus.len(), |tasks, gpus| {
        bind.most_on_a_gpu(names, request.mode == Mode::PerGpu, tasks, gpus)
    });
    check_generations(request.mode, &gpus)?;
    let clients = |gpu: &&Gpu| case.inventory.clients(gpu, settings.max_clients);
    let clients = gpus.iter().map(clients).min();
    let warning = check_tasks(case, &settings, &gpus, tasks.zip(clients))?;
    let shares = request
        .replicas
        .zip(clients)
        .filter(|(shares, most)| shares > most);
    let shares =
        shares.map(|(shares, most)| format!("a {} takes {most} MPS clients, not {shares}", mig::kind(&gpus)));
    let wanted = ShareRequest {
        asked: &case.asked.request,
        syntax: case.asked.syntax,
        request: &request,
        ceilings: &settings.ceilings,
        gpus: &gpus,
        tasks: meeting,
    };
    let share = wanted.share()?;
    let most = wanted.most();
    let memory_parts = share.divides_memory_by(&gpus);
    let job = &case.asked.submission.job;
    let partitions = partitions::PartitionRequest {
        request: &request,
        syntax: case.asked.syntax,
        settings: &settings,
        inventory: case.inventory,
        gpus: &gpus,
        tasks: case.devices.tasks_on_node,
    };
    let mut daemons = daemons(&request, &gpus, &share, &settings.paths.job(job));
    for partition in partitions.partitions()? {
        let mut daemons = daemons.iter_mut();
        let of_gpu = daemons.find(|daemon| daemon.gpus.contains(&partition.gpu));
        of_gpu
            .into_iter()
            .for_each(|daemon| daemon.partitions.push(partition.clone()));
    }
    let plan = Plan {
        job: job.clone(),
        uid: case.uid,
        gpus: gpus
            .iter()
            .map(|gpu| RecordGpu {
                index: gpu.index,
                uuid: gpu.uuid.clone(),
                cpus: gpu.cpus.clone(),
            })
            .collect(),
        effects: effects(case, &settings, &gpus, daemons.len(), &mut notes),
        daemons,
        rank_threads: share.rank_threads,
        rank_memory: share.rank_memory,
        most,
        divided: AutoDivisors {
            threads: meeting.filter(|_| request.threads == Some(Threads::Auto)),
            memory: memory_parts.filter(|_| request.memory == Some(MemoryLimit::Auto)),
        },
        warnings: [warning, shares, without_rank(case, &request, gpus.len(), names)]
            .into_iter()
            .flatten()
            .collect(),
        notes,
        verify: request.verify == Some(true),
        report: request.report == Some(true),
        then: request.plan_lines().collect(),
        per_gpu: request.mode == Mode::PerGpu,
        bind,
        names,
        clients,
    };
    Ok((settings, plan))
}

fn daemons(request: &Request, gpus: &[&Gpu], share: &Share, paths: &JobPaths) -> Vec<Daemon> {
    let groups: Vec<&[&Gpu]> = match request.mode {
        Mode::PerGpu => gpus.chunks(1).collect(),
        Mode::PerNode | Mode::Off => vec![gpus],
    };
    let count = groups.len();
    groups
        .iter()
        .enumerate()
        .map(|(n, group)| share.daemon(group, paths.pipe(n, count), paths.log(n, count)))
        .collect()
}

fn effects(
    case: &Case<'_>,
    settings: &Settings,
    gpus: &[&Gpu],
    daemons: usize,
    notes: &mut Vec<String>,
) -> Vec<Effect> {
    let mut effects = Vec::new();
    for gpu in gpus {
        effects.push(Effect::ClaimGpu {
            gpu: gpu.uuid.clone(),
        });
        match why_mode_stays(case, settings, gpu) {
            None => effects.push(Effect::SetComputeMode {
                gpu: gpu.uuid.clone(),
                mode: ComputeMode::ExclusiveProcess,
            }),
            Some(why) => notes.push(format!("compute mode of {} stays {}: {why}", gpu.uuid, gpu.mode)),
        }
    }
    if settings.cgroup != Cgroup::None {
        effects.push(Effect::MakeCgroup);
    }
    effects.extend((0..daemons).map(|daemon| Effect::MakeDirectories { daemon }));
    effects.push(Effect::StartDaemon);
    // Last, while the daemon comes up. Exporters' files have one line a job and GPU, so a step with its own daemon has none.
    if !case.asked.submission.step {
        effects.extend(exporters(settings));
    }
    effects
}

fn exporters(settings: &Settings) -> Vec<Effect> {
    let site = &settings.metrics;
    let all = [
        (Exporter::Dcgm, &site.dcgm_job_map),
        (Exporter::Jobstats, &site.gpustat),
    ];
    let told = |(exporter, directory): (Exporter, &Option<PathBuf>)| {
        let directory = directory.clone()?;
        Some(Effect::TellExporter { exporter, directory })
    };
    all.into_iter().filter_map(told).collect()
}

fn why_mode_stays(case: &Case<'_>, settings: &Settings, gpu: &Gpu) -> Option<&'static str> {
    if gpu.uuid.is_mig() {
        Some("EXCLUSIVE_PROCESS is not for MIG devices")
    } else if settings.compute_mode != ComputeModeRule::Exclusive {
        Some("compute_mode = \"keep\"")
    } else if case.asked.submission.step {
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

/// A daemon that sees GPUs of mixed generation serves the newer ones only, and says nothing
/// (docs/facts/mps-control.md#which-gpus-a-client-sees).
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

/// How many tasks of the job meet on one of its `gpus` GPUs by `rule`, where the scheduler tells how many there are.
fn tasks_that_meet(devices: &Devices, gpus: usize, rule: impl Fn(u32, u32) -> u32) -> Option<u32> {
    let gpus = u32::try_from(gpus.max(1)).unwrap_or(u32::MAX);
    let tasks = devices.tasks_on_node.filter(|tasks| *tasks > 0)?;
    Some(rule(tasks, gpus))
}

/// What happens to a program that the job's script starts without a rank. Slurm gives a script one.
fn without_rank(case: &Case<'_>, request: &Request, gpus: usize, names: DeviceNames) -> Option<String> {
    let ranks_alone = request.mode == Mode::PerGpu && gpus > 1 && names != DeviceNames::Keep;
    let system = scheduler::of(case.asked.submission.scheduler);
    (ranks_alone && !system.has_steps()).then(|| {
        "with a daemon for each GPU a program without a rank sees no GPU: start each rank with 'mpsctl exec -- COMMAND'"
            .to_owned()
    })
}

/// A refusal, or a warning where the site only warns.
fn check_tasks(
    case: &Case<'_>,
    settings: &Settings,
    gpus: &[&Gpu],
    tasks_and_most: Option<(u32, u32)>,
) -> Result<Option<String>, Refusal> {
    let Some((tasks, most)) = tasks_and_most.filter(|(tasks, most)| tasks > most) else {
        return Ok(None);
    };
    let kind = mig::kind(gpus);
    let why = format!("a {kind} takes {most} MPS clients, and this job has {tasks} tasks on each");
    if settings.too_many_tasks == WarnOrRefuse::Refuse {
        let what = format!(
            "{} tasks on {} {kind}s",
            case.devices.tasks_on_node.unwrap_or(0),
            gpus.len()
        );
        return Err(Refusal::new(what, why, format!("at most {most} tasks a {kind}")));
    }
    Ok(Some(format!("{why}; those beyond fail if all of them use it")))
}
