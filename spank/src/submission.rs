//! srun, sbatch and salloc: all flags together, before anything is submitted.

use crate::handle::{Context, Level, Slurm, Verdict};
use crate::state::State;
use crate::unplugged;
use mpsd_core::environment::JOB;
use mpsd_core::request::{Flags, Key};
use mpsd_core::{Refusal, Request};

/// Tells job_prolog, as `SPANK_MPS_SUBMIT`, which command submitted the job. The user can write it too; neither value
/// does harm.
const VARIABLE: &str = "MPS_SUBMIT";

/// What job_prolog sees of it.
pub const SUBMITTED: &str = "SPANK_MPS_SUBMIT";

/// Tells a job_prolog that a step is the first of its job on the node (no PrologFlags) what the job itself asked for, as
/// `SPANK_MPS_JOB`: a request, `off`, or nothing. The user's text, as the flags are.
const OF_JOB: &str = "MPS_JOB";

/// What [`OF_JOB`] says of a job that said no.
pub const OFF: &str = "off";

/// Which command submits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submitter {
    /// srun, for a job of its own.
    Srun,
    /// srun, for a step in an allocation.
    Step,
    /// sbatch, salloc, scrontab.
    Allocator,
}

impl Submitter {
    fn word(self) -> &'static str {
        match self {
            Self::Srun => "srun",
            Self::Step => "step",
            Self::Allocator => "allocator",
        }
    }

    /// Whether this one submitted the job of a job_prolog.
    pub fn submitted(self, slurm: &dyn Slurm) -> bool {
        slurm.process_env(SUBMITTED).as_deref() == Some(self.word())
    }
}

/// What the job of a step asked for, told to job_prolog by the step's srun; `None` where the flags are the job's.
pub fn told_of_job(slurm: &dyn Slurm) -> Option<String> {
    Submitter::Step
        .submitted(slurm)
        .then(|| slurm.process_env(&format!("SPANK_{OF_JOB}")).unwrap_or_default())
}

/// What a job has in its environment: each of Slurm's submitting commands sets the first three, and our plugin the last.
const OF_A_JOB: [&str; 4] = ["SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", JOB];
/// What stands before a variable for the prolog where an allocation hands it to its steps.
const HANDED_ON: &str = "SLURM_SPANK_";

/// The variable for the prolog that has the value of an option's flag.
fn option_variable(key: Key) -> String {
    let option = key.row().flag().replace('-', "_");
    format!("_SLURM_SPANK_OPTION_mps_{option}")
}

/// What an allocation hands to its steps is no request of what its script submits, nor of a step of another job. Called before
/// Slurm reads an option from the environment; srun has already copied it for the prolog. salloc's shell has each option twice:
/// without the prefix slurmstepd takes it (docs/facts/slurm.md#options).
pub fn forget_inherited(slurm: &mut dyn Slurm) {
    let in_a_job = OF_A_JOB.iter().any(|name| slurm.process_env(name).is_some());
    if !in_a_job || is_step_of_its_job(slurm) {
        return;
    }
    let ours = [VARIABLE, OF_JOB].map(str::to_owned);
    for name in Key::ALL.map(option_variable).into_iter().chain(ours) {
        slurm.set_process_env(&format!("{HANDED_ON}{name}"), None);
        slurm.set_process_env(&name, None);
        slurm.unset_script_env(&name);
    }
}

/// srun in the allocation that its environment names. A `--jobid` behind the step's program may be that program's own: then the step
/// has no flags of its job, and its job's MPS all the same.
fn is_step_of_its_job(slurm: &dyn Slurm) -> bool {
    let Some(own) = slurm.process_env("SLURM_JOB_ID") else {
        return false;
    };
    let words = slurm.command_line();
    let at = words.iter().position(|word| word.starts_with("--jobid"));
    let given = at.and_then(|at| {
        words[at]
            .strip_prefix("--jobid=")
            .or(words.get(at + 1).map(String::as_str))
    });
    let of_array = |name| slurm.process_env(name).unwrap_or_default();
    let element = || {
        format!(
            "{}_{}",
            of_array("SLURM_ARRAY_JOB_ID"),
            of_array("SLURM_ARRAY_TASK_ID")
        )
    };
    // `12+1` is a component of het job 12.
    let is_own = |given: &str| given.split('+').next() == Some(&own) || given == element();
    slurm.context() == Context::Local && given.is_none_or(is_own)
}

/// What the allocation around a step asked for: sbatch and salloc leave their flags in the environment.
fn of_allocation(slurm: &dyn Slurm) -> Result<Option<Request>, Refusal> {
    let mut flags = Flags::default();
    for key in Key::ALL {
        if let Some(value) = slurm.process_env(&format!("{HANDED_ON}{}", option_variable(key))) {
            // A wrong one is refused with the others.
            let _ = flags.take(key, Some(&value));
        }
    }
    flags.request()
}

/// `init_post_opt` of the submitting command. It leaves by itself on a refusal, since under `optional` Slurm would go on
/// and submit.
pub fn check(slurm: &mut dyn Slurm, state: &State, by: Submitter) -> Verdict {
    let by = match by {
        Submitter::Srun if slurm.process_env("SLURM_JOB_ID").is_some() => Submitter::Step,
        other => other,
    };
    // A het job comes here once a component. Slurm hands the flags of one on to those after it, and so do we.
    let refusal = match (&state.request, &state.line) {
        (Ok(None), _) => {
            unplugged::release(slurm);
            return Verdict::Continue;
        }
        (Err(refusal), _) => Some(refusal.to_string()),
        (Ok(Some(_)), Err(why)) => Some(format!("--mps cannot be given here: {why}")),
        (Ok(Some(request)), Ok(_)) if by == Submitter::Step && request.is_on() => of_component(slurm),
        (Ok(Some(_)), Ok(_)) => None,
    };
    if let Some(line) = refusal {
        slurm.log(Level::Error, &line);
        return Verdict::Leave;
    }
    match &state.line {
        Ok(line) if state.asks() => unplugged::require(slurm, &line.prologue),
        _ => unplugged::release(slurm),
    }
    slurm.set_script_env(VARIABLE, by.word());
    if by == Submitter::Step {
        let job = match of_allocation(slurm) {
            Ok(Some(request)) if request.is_on() => request.to_string(),
            Ok(Some(_)) => OFF.to_owned(),
            Ok(None) | Err(_) => String::new(),
        };
        slurm.set_script_env(OF_JOB, &job);
    }
    Verdict::Continue
}

/// Why a step of a het job cannot have MPS of its own: on a node its flags cannot be told from another component's.
fn of_component(slurm: &dyn Slurm) -> Option<String> {
    slurm.process_env("SLURM_HET_SIZE")?;
    let has_mps = matches!(of_allocation(slurm), Ok(Some(request)) if request.is_on());
    (!has_mps).then(|| {
        "--mps: a step of a het job has the MPS of its component; allowed: --mps for the component in salloc or sbatch".into()
    })
}
