//! A step's own daemon: `srun --mps` in an allocation that was made without it.
//!
//! The step's slurmstepd starts it as root before its tasks and ends it in its exit callback. If slurmstepd is killed,
//! job_epilog cleans up.

use crate::arguments::{Arguments, Scope};
use crate::handle::{Item, Node, Program, ProgramResult, Slurm};
use crate::job_script::{self, program};
use crate::state::PluginState;
use mpsd_core::Request;
use mpsd_core::config::Settings;
use mpsd_core::environment::{THREADS, VISIBLE_DEVICES};

/// `SLURM_EXTERN_CONT`: holds the allocation, sees no option and has no task of the user.
const EXTERN: u32 = 0xffff_fffc;
const BATCH: u32 = 0xffff_fffb;
/// `SLURM_INTERACTIVE_STEP`: salloc's shell on a node.
const INTERACTIVE: u32 = 0xffff_fffa;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// The job's own script or shell.
    Job,
    /// A step of srun.
    Step(u32),
}

/// The kind of the step of this slurmstepd; `None`: it has no task of the user.
pub fn kind(slurm: &dyn Slurm) -> Option<StepKind> {
    match slurm.item(Item::StepId)? {
        EXTERN => None,
        BATCH | INTERACTIVE => Some(StepKind::Job),
        number => Some(StepKind::Step(number)),
    }
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

/// `init_post_opt` in slurmstepd: reads the configuration and what tasks cannot open themselves while still root, and
/// starts the step's daemon if it asked for one and its job has none.
pub fn begin(slurm: &dyn Slurm, node: &dyn Node, state: &mut PluginState) {
    let (Some(kind), Ok(arguments)) = (kind(slurm), &state.line) else {
        return;
    };
    let settings = job_script::settings(slurm, node, arguments);
    if let (Some(job), Ok(settings)) = (slurm.job(), &settings) {
        let paths = settings.paths.job(&job);
        let of_job = node.record(&paths.record());
        if let StepKind::Step(number) = kind {
            let gpus = slurm.job_env("SLURM_STEP_GPUS").filter(|list| !list.is_empty());
            state.step.gpus = gpus.and_then(|list| list.split(',').count().try_into().ok());
            match &of_job {
                // A job's record holds for its steps, even a refusal.
                Ok(Some(record)) => {
                    state.flags.imply_mode();
                    let sms = record.request.as_ref().and_then(|request| request.sms.as_ref());
                    state.step.partitions_lock = sms.map(|_| node.partitions_lock(&paths));
                    let observed = node.observations(&paths).unwrap_or_default();
                    state.step.limits_set = observed.limits_set;
                }
                Ok(None) if !is_component(slurm) => {
                    match own_daemon(slurm, state, arguments, settings, number) {
                        Ok(None) => {}
                        Ok(Some(program)) => {
                            let result = run(slurm, node, number, &program);
                            state.step.failure = job_script::failure(&result);
                            state.step.own_daemon = true;
                        }
                        Err(why) => state.step.failure = Some(why),
                    }
                }
                _ => {}
            }
        }
        state.step.has_mps = state.step.own_daemon || matches!(of_job, Ok(Some(_)));
    }
    state.step.settings = Some(settings);
}

/// The `mps-prologue` of a step that asks for a daemon of its own, or why it cannot have one.
fn own_daemon(
    slurm: &dyn Slurm,
    state: &PluginState,
    arguments: &Arguments,
    settings: &Settings,
    number: u32,
) -> Result<Option<Program>, String> {
    let request = state.flags.request().map_err(|refusal| refusal.to_string())?;
    let Some(request) = request.filter(Request::is_on) else {
        return Ok(None);
    };
    if arguments.scope == Scope::Job {
        return Err("this cluster gives MPS to whole jobs only: give --mps to sbatch or salloc".into());
    }
    let request = request.to_string();
    let words = ["--request", &request, "--record", "--wait", "started"];
    let (path, environment) = (&arguments.prologue, environment(slurm, number));
    Ok(Some(program(path, arguments, settings, &words, environment)))
}

fn run(slurm: &dyn Slurm, node: &dyn Node, number: u32, program: &Program) -> ProgramResult {
    let job = slurm.item(Item::JobId).unwrap_or_default();
    job_script::run(slurm, node, &format!("step {job}.{number}"), program)
}

/// `exit` in slurmstepd: ends the step's own daemon.
pub fn end(slurm: &dyn Slurm, node: &dyn Node, state: &PluginState) {
    let step = (kind(slurm), &state.line, &state.step.settings);
    if let (Some(StepKind::Step(number)), Ok(arguments), Some(Ok(settings))) = step
        && state.step.own_daemon
    {
        let (words, environment) = (["--strict"], environment(slurm, number));
        let mut program = program(&arguments.epilogue, arguments, settings, &words, environment);
        program.detached = true;
        run(slurm, node, number, &program);
    }
}

/// What the two programs need to know of a step: Slurm's own items, and what only the step's environment knows. There
/// slurmstepd has overwritten what the user had (gres_common_gpu_set_env, 22.05).
fn environment(slurm: &dyn Slurm, number: u32) -> Vec<(String, String)> {
    let item = |item| slurm.item(item).map(|value| value.to_string());
    let of_slurm = [
        ("SLURM_JOB_ID", item(Item::JobId)),
        ("SLURM_STEP_ID", Some(number.to_string())),
        ("SLURM_STEP_NUM_NODES", Some("1".to_owned())),
        ("SLURM_JOB_UID", item(Item::JobUid)),
        ("SLURM_JOB_GID", item(Item::JobGid)),
        ("SLURM_STEP_NUM_TASKS", item(Item::LocalTasks)),
    ];
    let of_step = [
        "SLURM_STEP_GPUS",
        VISIBLE_DEVICES,
        "SLURM_SHARDS_ON_NODE",
        THREADS,
    ];
    let of_process = ["SLURMD_NODENAME", "SLURM_CONF", "SLURM_CLUSTER_NAME"];
    let of_step = of_step.map(|name| (name, slurm.job_env(name)));
    let of_process = of_process.map(|name| (name, slurm.process_env(name)));
    let all = of_slurm.into_iter().chain(of_step).chain(of_process);
    all.filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}
