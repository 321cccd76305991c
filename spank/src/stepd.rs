//! A step's own daemon: `srun --mps` in an allocation that was made without it.
//!
//! Started as root by the step's slurmstepd before its tasks, ended by its exit callback; where slurmstepd is killed,
//! job_epilog cleans up.

use crate::arguments::{Arguments, Scope};
use crate::handle::{Item, Level, Node, Program, Slurm, Verdict};
use crate::job_script::{self, GRACE};
use crate::partitions;
use crate::state::State;
use mpsd_core::JobId;
use mpsd_core::config::Settings;
use mpsd_core::observations::LimitSet;
use std::time::Duration;

/// `SLURM_EXTERN_CONT`: holds the allocation, sees no option.
const EXTERN: u32 = 0xffff_fffc;
/// `SLURM_BATCH_SCRIPT`.
const BATCH: u32 = 0xffff_fffb;
/// `SLURM_INTERACTIVE_STEP`: salloc's shell on a node.
const INTERACTIVE: u32 = 0xffff_fffa;

/// What kind of step this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// No task of the user.
    Extern,
    /// The job's own script or shell.
    Job,
    /// A step of srun.
    Step(u32),
}

/// The kind of the step of this slurmstepd.
pub fn kind(slurm: &dyn Slurm) -> Option<Kind> {
    Some(match slurm.item(Item::StepId)? {
        EXTERN => Kind::Extern,
        BATCH | INTERACTIVE => Kind::Job,
        number => Kind::Step(number),
    })
}

/// The batch script itself, before which no task prolog of a user's runs.
pub fn is_script(slurm: &dyn Slurm) -> bool {
    slurm.item(Item::StepId) == Some(BATCH)
}

/// A step that a batch script began: slurmd's word in the script's environment, from which its steps have it.
pub fn is_of_script(slurm: &dyn Slurm) -> bool {
    slurm.job_env("ENVIRONMENT").as_deref() == Some("BATCH")
}

/// A component of a het job, whose flags on a node may be another component's.
pub fn is_component(slurm: &dyn Slurm) -> bool {
    slurm.job_env("SLURM_HET_SIZE").is_some()
}

/// `init_post_opt` in slurmstepd: reads the configuration while still root, and starts the step's daemon if it asked
/// for one and its job has none.
pub fn begin(slurm: &dyn Slurm, node: &dyn Node, state: &mut State) -> Verdict {
    let (Some(kind), Ok(arguments)) = (kind(slurm), state.line.clone()) else {
        return Verdict::Continue;
    };
    if kind == Kind::Extern {
        return Verdict::Continue;
    }
    let name = slurm.process_env("SLURMD_NODENAME");
    let settings = node.settings(&arguments.config, name.as_deref());
    if matches!(kind, Kind::Step(_)) {
        let gpus = slurm.job_env("SLURM_STEP_GPUS").filter(|list| !list.is_empty());
        state.gpus = gpus.and_then(|list| list.split(',').count().try_into().ok());
    }
    if let (Some(job), Ok(settings)) = (slurm.job(), &settings) {
        let of_job = node.record(&settings.paths.job(&job).record());
        if let Kind::Step(number) = kind {
            // Whatever the job's own record says goes for its steps, also that it was refused.
            if matches!(of_job, Ok(None)) {
                own_daemon(slurm, node, state, &arguments, settings, number);
            }
            state.ranks = partitions::open(slurm, node, settings);
            state.set = limits_set(slurm, node, settings).unwrap_or_default();
        }
        state.has_mps = state.own_daemon || matches!(of_job, Ok(Some(_)));
    }
    state.settings = Some(settings);
    Verdict::Continue
}

/// The limits that `mpsctl set` gave the job's clients, in root's file, which the tasks cannot open.
fn limits_set(slurm: &dyn Slurm, node: &dyn Node, settings: &Settings) -> Option<Vec<LimitSet>> {
    let paths = settings.paths.job(&slurm.job()?);
    node.record(&paths.record()).ok()??;
    Some(node.observations(&paths)?.limits_set)
}

fn own_daemon(
    slurm: &dyn Slurm,
    node: &dyn Node,
    state: &mut State,
    arguments: &Arguments,
    settings: &Settings,
    number: u32,
) {
    let Some(job) = slurm.job() else { return };
    if is_component(slurm) {
        return;
    }
    let request = match &state.request {
        Ok(Some(request)) if request.is_on() => request.to_string(),
        Ok(_) => return,
        Err(refusal) => {
            state.failure = Some(refusal.to_string());
            return;
        }
    };
    if arguments.scope == Scope::Job {
        state.failure =
            Some("this cluster gives MPS to whole jobs only: give --mps to sbatch or salloc".into());
        return;
    }
    let program = job_script::prologue(
        arguments,
        &request,
        true,
        environment(slurm, &job, number),
        limit(settings),
    );
    state.own_daemon = true;
    finish(slurm, node, state, &format!("step {job}.{number}"), &program);
}

fn finish(slurm: &dyn Slurm, node: &dyn Node, state: &mut State, whose: &str, program: &Program) {
    let ended = node.run(program);
    job_script::report(slurm, whose, &ended);
    state.failure = match &ended.code {
        Ok(0) => None,
        Ok(_) => ended.lines.last().map(|line| job_script::said(line).to_owned()),
        Err(why) => Some(why.clone()),
    };
}

/// `exit` in slurmstepd: ends the step's own daemon.
pub fn end(slurm: &dyn Slurm, node: &dyn Node, state: &State) -> Verdict {
    if let (true, Some(job), Some(Kind::Step(number)), Ok(arguments), Some(Ok(settings))) = (
        state.own_daemon,
        slurm.job(),
        kind(slurm),
        &state.line,
        &state.settings,
    ) {
        let environment = environment(slurm, &job, number);
        let mut program = job_script::epilogue(arguments, environment, limit(settings));
        program.detached = true;
        let ended = node.run(&program);
        job_script::report(slurm, &format!("step {job}.{number}"), &ended);
    }
    Verdict::Continue
}

fn limit(settings: &Settings) -> Duration {
    settings.deadline + GRACE
}

/// What the two programs need to know of a step. Slurm's own items where it has them; what only the step's environment
/// knows was written there by slurmstepd over whatever the user had (gres_common_gpu_set_env, 22.05).
fn environment(slurm: &dyn Slurm, job: &JobId, number: u32) -> Vec<(String, String)> {
    let mut environment = vec![
        ("SLURM_JOB_ID".to_owned(), job.to_string()),
        ("SLURM_STEP_ID".to_owned(), number.to_string()),
        ("SLURM_STEP_NUM_NODES".to_owned(), "1".to_owned()),
    ];
    let items = [
        (Item::JobUid, "SLURM_JOB_UID"),
        (Item::JobGid, "SLURM_JOB_GID"),
        (Item::LocalTasks, "SLURM_STEP_NUM_TASKS"),
    ];
    for (item, name) in items {
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
