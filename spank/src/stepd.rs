//! A step's own daemon: `srun --mps` in an allocation that was made without it.
//!
//! The step's slurmstepd starts it as root before its tasks and ends it in its exit callback. If slurmstepd is killed,
//! job_epilog cleans up.

use crate::arguments::{Arguments, Scope};
use crate::handle::{Item, Level, Node, Slurm, Verdict};
use crate::job_script::{self, limit};
use crate::state::PluginState;
use mpsd_core::config::Settings;
use mpsd_core::record::Record;
use mpsd_core::{JobId, JobPaths};

/// `SLURM_EXTERN_CONT`: holds the allocation, sees no option.
const EXTERN: u32 = 0xffff_fffc;
/// `SLURM_BATCH_SCRIPT`.
const BATCH: u32 = 0xffff_fffb;
/// `SLURM_INTERACTIVE_STEP`: salloc's shell on a node.
const INTERACTIVE: u32 = 0xffff_fffa;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// Has no task of the user.
    Extern,
    /// The job's own script or shell.
    Job,
    /// A step of srun.
    Step(u32),
}

/// The kind of the step of this slurmstepd.
pub fn kind(slurm: &dyn Slurm) -> Option<StepKind> {
    Some(match slurm.item(Item::StepId)? {
        EXTERN => StepKind::Extern,
        BATCH | INTERACTIVE => StepKind::Job,
        number => StepKind::Step(number),
    })
}

/// Whether this is the batch script itself, before which no task prolog of the user runs.
pub fn is_script(slurm: &dyn Slurm) -> bool {
    slurm.item(Item::StepId) == Some(BATCH)
}

/// Whether a batch script began this step. slurmd says so in the script's environment, which its steps inherit.
pub fn is_of_script(slurm: &dyn Slurm) -> bool {
    slurm.job_env("ENVIRONMENT").as_deref() == Some("BATCH")
}

/// Whether this is a component of a het job; its flags on a node may be another component's.
pub fn is_component(slurm: &dyn Slurm) -> bool {
    slurm.job_env("SLURM_HET_SIZE").is_some()
}

/// `init_post_opt` in slurmstepd: reads the configuration while still root, and starts the step's daemon if it asked
/// for one and its job has none.
pub fn begin(slurm: &dyn Slurm, node: &dyn Node, state: &mut PluginState) -> Verdict {
    let (Some(kind), Ok(arguments)) = (kind(slurm), state.line.clone()) else {
        return Verdict::Continue;
    };
    if kind == StepKind::Extern {
        return Verdict::Continue;
    }
    let name = slurm.process_env("SLURMD_NODENAME");
    let settings = node.settings(&arguments.config, name.as_deref());
    if let (Some(job), Ok(settings)) = (slurm.job(), &settings) {
        let of_job = node.record(&settings.paths.job(&job).record());
        if let StepKind::Step(number) = kind {
            let gpus = slurm.job_env("SLURM_STEP_GPUS").filter(|list| !list.is_empty());
            state.gpus = gpus.and_then(|list| list.split(',').count().try_into().ok());
            match &of_job {
                // A job's record holds for its steps, even a refusal.
                Ok(None) => own_daemon(slurm, node, state, &arguments, settings, number),
                Ok(Some(record)) => of_jobs_record(node, state, record, &settings.paths.job(&job)),
                Err(_) => {}
            }
        }
        state.has_mps = state.own_daemon || matches!(of_job, Ok(Some(_)));
    }
    state.settings = Some(settings);
    Verdict::Continue
}

/// What a step's tasks need of the job's directory and cannot open themselves.
fn of_jobs_record(node: &dyn Node, state: &mut PluginState, record: &Record, paths: &JobPaths) {
    let sms = record.request.as_ref().and_then(|request| request.sms.as_ref());
    state.partitions_lock = sms.map(|_| node.partitions_lock(paths));
    state.limits_set = node
        .observations(paths)
        .map(|observed| observed.limits_set)
        .unwrap_or_default();
}

fn own_daemon(
    slurm: &dyn Slurm,
    node: &dyn Node,
    state: &mut PluginState,
    arguments: &Arguments,
    settings: &Settings,
    number: u32,
) {
    let Some(job) = slurm.job().filter(|_| !is_component(slurm)) else {
        return;
    };
    let request = match &state.request {
        Ok(Some(request)) if request.is_on() && arguments.scope == Scope::Job => {
            let why = "this cluster gives MPS to whole jobs only: give --mps to sbatch or salloc";
            state.failure = Some(why.into());
            return;
        }
        Ok(Some(request)) if request.is_on() => request.to_string(),
        Ok(_) => return,
        Err(refusal) => {
            state.failure = Some(refusal.to_string());
            return;
        }
    };
    state.own_daemon = true;
    let environment = environment(slurm, &job, number);
    let program = job_script::prologue(arguments, &request, true, environment, limit(settings));
    let result = node.run(&program);
    job_script::report(slurm, &format!("step {job}.{number}"), &result);
    let last_line = || {
        result
            .lines
            .last()
            .map(|line| job_script::unprefixed(line).to_owned())
    };
    state.failure = match &result.code {
        Ok(0) => None,
        Ok(_) => last_line(),
        Err(why) => Some(why.clone()),
    };
}

/// `exit` in slurmstepd: ends the step's own daemon.
pub fn end(slurm: &dyn Slurm, node: &dyn Node, state: &PluginState) -> Verdict {
    let step = (slurm.job(), kind(slurm), &state.line, &state.settings);
    if let (Some(job), Some(StepKind::Step(number)), Ok(arguments), Some(Ok(settings))) = step
        && state.own_daemon
    {
        let environment = environment(slurm, &job, number);
        let mut program = job_script::epilogue(arguments, environment, limit(settings));
        program.detached = true;
        let result = node.run(&program);
        job_script::report(slurm, &format!("step {job}.{number}"), &result);
    }
    Verdict::Continue
}

/// What the two programs need to know of a step: Slurm's own items, and what only the step's environment knows. There
/// slurmstepd has overwritten what the user had (gres_common_gpu_set_env, 22.05).
fn environment(slurm: &dyn Slurm, job: &JobId, number: u32) -> Vec<(String, String)> {
    let mut environment = vec![
        ("SLURM_JOB_ID".to_owned(), job.to_string()),
        ("SLURM_STEP_ID".to_owned(), number.to_string()),
        ("SLURM_STEP_NUM_NODES".to_owned(), "1".to_owned()),
    ];
    for (item, name) in [
        (Item::JobUid, "SLURM_JOB_UID"),
        (Item::JobGid, "SLURM_JOB_GID"),
        (Item::LocalTasks, "SLURM_STEP_NUM_TASKS"),
    ] {
        match slurm.item(item) {
            Some(value) => environment.push((name.to_owned(), value.to_string())),
            None => slurm.log(Level::Verbose, &format!("Slurm does not say {name}")),
        }
    }
    for name in [
        "SLURM_STEP_GPUS",
        "CUDA_VISIBLE_DEVICES",
        "SLURM_SHARDS_ON_NODE",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    ] {
        environment.extend(slurm.job_env(name).map(|value| (name.to_owned(), value)));
    }
    for name in ["SLURMD_NODENAME", "SLURM_CONF", "SLURM_CLUSTER_NAME"] {
        environment.extend(slurm.process_env(name).map(|value| (name.to_owned(), value)));
    }
    environment
}
