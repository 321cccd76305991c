//! srun, sbatch and salloc: all flags together, before anything is submitted.

use crate::handle::{Context, Level, Slurm, Verdict};
use crate::oci;
use crate::state::PluginState;
use crate::unplugged;
use mpsd_core::environment::JOB;
use mpsd_core::request::{Flags, Key};
use mpsd_core::{Mode, Refusal, Request};
use std::ffi::CStr;

/// Tells job_prolog, with `SPANK_` before it, which command submitted. The user can write it too;
/// no value does harm.
const SUBMITTER: &str = "MPS_SUBMIT";
pub const SUBMITTER_IN_PROLOG: &str = "SPANK_MPS_SUBMIT";
pub const SRUN: &str = "srun";
pub const STEP: &str = "step";

/// Tells job_prolog what the job of a step asked for: without PrologFlags the step may be the first
/// of its job on the node. The user can write it, like the flags.
const OF_JOB: &str = "MPS_JOB";
pub const OF_JOB_IN_PROLOG: &str = "SPANK_MPS_JOB";
pub const OFF: &str = "off";

/// Each of Slurm's submitting commands sets the first three for a job, this plugin the last.
const OF_A_JOB: [&str; 4] = ["SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", JOB];
/// An allocation hands a variable for the prolog to its steps with this prefix.
const HANDED_ON: &str = "SLURM_SPANK_";

/// Options that may give a job GPUs: a partition's jobs may have whole nodes, and `--jobid` makes a
/// step.
pub const MAY_GIVE_GPUS: [&CStr; 13] = [
    c"gpus",
    c"gpus-per-node",
    c"gpus-per-socket",
    c"gpus-per-task",
    c"cpus-per-gpu",
    c"mem-per-gpu",
    c"ntasks-per-gpu",
    c"tres-per-task",
    c"exclusive",
    c"partition",
    c"reservation",
    c"qos",
    c"jobid",
];
const GRES: &CStr = c"gres";
const GRES_OF_GPUS: [&str; 3] = ["gpu", "shard", "mps"];
const NO_GPU: &str = "--mps: this job asks for no GPU, and is refused on its node unless the site gives it one; add --gres=gpu:1";

/// False in doubt: a site may give GPUs by a partition or by a plugin of its own.
fn asks_for_no_gpu(slurm: &dyn Slurm) -> bool {
    let names_gpus = |gres: String| GRES_OF_GPUS.iter().any(|name| gres.contains(name));
    let gres = slurm.submit_option(GRES);
    let mut others = MAY_GIVE_GPUS.iter();
    gres.is_some_and(|gres| !gres.is_some_and(names_gpus))
        && others.all(|option| slurm.submit_option(option) == Some(None))
}

fn option_variable(key: Key) -> String {
    let option = key.row().flag().replace('-', "_");
    format!("_SLURM_SPANK_OPTION_mps_{option}")
}

pub fn request_text(request: Option<&Request>) -> String {
    match request {
        Some(request) if request.is_on() => request.to_string(),
        Some(_) => OFF.to_owned(),
        None => String::new(),
    }
}

/// Removes an allocation's flags, which its steps inherit, for a job that its script submits or a
/// step of another job: these did not ask. Slurm reads options from the environment later; srun has
/// already copied them for the prolog. In salloc's shell each also stands without the prefix, for
/// slurmstepd (docs/facts/slurm.md#options).
pub fn forget_inherited(slurm: &mut dyn Slurm) {
    let is_set = |name: &&str| slurm.process_env(name).is_some();
    let in_a_job = OF_A_JOB.iter().any(is_set);
    if !in_a_job || is_step_of_its_job(slurm) {
        return;
    }
    let ours = [SUBMITTER, OF_JOB].map(str::to_owned);
    for name in Key::ALL.map(option_variable).into_iter().chain(ours) {
        slurm.set_process_env(&format!("{HANDED_ON}{name}"), None);
        slurm.set_process_env(&name, None);
        slurm.set_job_control_env(&name, None);
    }
}

/// Whether this is srun in the allocation that its environment names. A `--jobid` behind the step's
/// program may belong to that program: then the step loses its job's flags, but not its job's MPS.
fn is_step_of_its_job(slurm: &dyn Slurm) -> bool {
    let Some(own) = slurm.process_env("SLURM_JOB_ID") else {
        return false;
    };
    let mut words = slurm.command_line().into_iter();
    let given = words.find(|word| word.starts_with("--jobid"));
    let given = given.and_then(|word| match word.strip_prefix("--jobid=") {
        Some(job) => Some(job.to_owned()),
        None => words.next(),
    });
    let variable = |name| slurm.process_env(name).unwrap_or_default();
    let array = ["SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"];
    let element = || array.map(variable).join("_");
    // `12+1` is a component of het job 12.
    let is_own = |given: String| given.split('+').next() == Some(&own) || given == element();
    slurm.context() == Context::Local && given.is_none_or(is_own)
}

/// sbatch and salloc leave their flags in the environment of steps.
fn of_allocation(slurm: &dyn Slurm) -> Result<Option<Request>, Refusal> {
    let variable = |key| slurm.process_env(&format!("{HANDED_ON}{}", option_variable(key)));
    Flags::from_fn(|key| variable(key).map(Some)).request()
}

/// A refusal ends the process, because under `optional` Slurm would submit.
pub fn check(slurm: &mut dyn Slurm, state: &mut PluginState) -> Verdict {
    // A step from outside its job does not have the job's flags. On the node the job's record tells
    // whether it has MPS.
    if slurm.process_env("SLURM_JOB_ID").is_none()
        && matches!(slurm.submit_option(c"jobid"), Some(Some(_)))
    {
        state.imply_mode();
    }
    let request = &state.request;
    if *request == Ok(None) {
        unplugged::release(slurm);
        return Verdict::Continue;
    }
    let (by, of_job) = match slurm.context() {
        Context::Allocator if slurm.is_batch() => ("sbatch", None),
        Context::Allocator => ("salloc", None),
        _ if slurm.process_env("SLURM_JOB_ID").is_none() => (SRUN, None),
        _ => (STEP, Some(of_allocation(slurm).unwrap_or_default())),
    };
    // This runs once a component of a het job. On a node a step's flags look the same as another
    // component's, since Slurm hands them on, and so do we.
    let is_component = slurm.process_env("SLURM_HET_SIZE").is_some() && state.asks();
    let has_mps = |job: &Option<Request>| job.as_ref().is_some_and(Request::is_on);
    let mode = state.request_on().map(|request| request.mode);
    let is_needed = mode.is_some_and(|mode| mode != Mode::Auto);
    let refusal = match (request, &state.line) {
        (Err(refusal), _) => refusal.to_string(),
        (_, Err(why)) => format!("--mps cannot be given here: {why}"),
        _ if is_component && !of_job.as_ref().is_none_or(has_mps) => {
            "--mps: a step of a het job has the MPS of its component; allowed: --mps for the component in salloc or sbatch".into()
        }
        _ if is_needed && matches!(slurm.submit_option(c"container"), Some(Some(_))) => {
            format!("--mps: {}", oci::REFUSED)
        }
        (_, Ok(line)) => {
            match state.asks() {
                true => unplugged::require(slurm, &line.prologue),
                false => unplugged::release(slurm),
            }
            slurm.set_job_control_env(SUBMITTER, Some(by));
            let first = !std::mem::replace(&mut state.has_checked, true);
            match of_job {
                Some(of_job) => slurm.set_job_control_env(OF_JOB, Some(&request_text(of_job.as_ref()))),
                None if first && is_needed && asks_for_no_gpu(slurm) => slurm.log(Level::Notice, NO_GPU),
                None => {}
            }
            return Verdict::Continue;
        }
    };
    slurm.log(Level::Error, &refusal);
    Verdict::EndProcess
}
