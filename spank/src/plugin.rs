//! One function a callback, each a match on the context.

use crate::arguments::{Arguments, Scope};
use crate::handle::{Context, Level, Node, Settings, Slurm, Verdict};
use crate::options::{self, Asked, Given, OPTIONS};
use crate::{job_script, stepd, task};

/// What the callbacks of one process share. Made by `init`; a task's forked child inherits slurmstepd's.
#[derive(Debug, Default)]
pub struct State {
    /// The flags as they arrived.
    pub given: Given,
    /// Why the line in plugstack.conf is unusable: nothing is done then, and who asks is told.
    pub broken: Option<String>,
    /// The configuration, read by slurmstepd as root; `None` in the steps that have no use for it.
    pub settings: Option<Result<Settings, String>>,
    /// The step's own daemon was asked of `mps-prologue`.
    pub own_daemon: bool,
    /// Why the step has none.
    pub failure: Option<String>,
}

/// Tells job_prolog, as `SPANK_MPS_SUBMIT`, which command submitted the job. The user can write it too; neither value
/// does harm.
pub const SUBMIT: &str = "MPS_SUBMIT";
/// The value of [`SUBMIT`] where srun submitted.
pub const BY_SRUN: &str = "srun";
/// The value of [`SUBMIT`] where sbatch or salloc did.
pub const BY_ALLOCATOR: &str = "allocator";

/// `slurm_spank_init`.
pub fn init(slurm: &mut dyn Slurm, _: &dyn Node, state: &mut State, words: &[String]) -> Verdict {
    *state = State {
        broken: Arguments::parse(words).err(),
        ..State::default()
    };
    match slurm.context() {
        Context::Local | Context::Allocator | Context::Remote => {
            // Also with a broken line: an unknown flag would not tell the user why.
            for number in 0..OPTIONS.len() {
                slurm.register(number);
            }
        }
        // The one place where a broken line is said unasked: once, in slurmd's log.
        Context::Slurmd => {
            if let Some(why) = &state.broken {
                slurm.log(Level::Error, &format!("inert: {why}"));
            }
        }
        Context::JobScript | Context::Unknown => {}
    }
    Verdict::Continue
}

/// An option's callback; what comes back is a refusal to be told.
pub fn option(state: &mut State, number: usize, argument: Option<String>, remote: bool) -> Option<String> {
    let checked = if remote {
        Ok(())
    } else {
        options::check(number, argument.as_deref())
    };
    state.given.take(number, argument);
    checked.err()
}

/// `slurm_spank_init_post_opt`.
pub fn init_post_opt(slurm: &mut dyn Slurm, node: &dyn Node, state: &mut State, words: &[String]) -> Verdict {
    match slurm.context() {
        Context::Local => submission(slurm, state, BY_SRUN),
        Context::Allocator => submission(slurm, state, BY_ALLOCATOR),
        Context::Remote => {
            if let Ok(arguments) = Arguments::parse(words) {
                stepd::begin(slurm, node, state, &arguments);
            }
            Verdict::Continue
        }
        Context::Slurmd | Context::JobScript | Context::Unknown => Verdict::Continue,
    }
}

/// All flags together, in the submitting command. It leaves by itself on a refusal, since under `optional` Slurm would
/// go on and submit; nothing is submitted yet.
fn submission(slurm: &mut dyn Slurm, state: &State, by: &str) -> Verdict {
    // A het job comes here once a component. Slurm hands the flags of one on to those after it, and so do we.
    let asked = state.given.asked();
    let refusal = match (&asked, &state.broken) {
        (Asked::Nothing, _) => return Verdict::Continue,
        (Asked::Wrong(refusal), _) => Some(refusal.to_string()),
        (Asked::Off | Asked::On(_), Some(why)) => Some(format!("--mps cannot be given here: {why}")),
        (Asked::Off | Asked::On(_), None) => None,
    };
    if let Some(line) = refusal {
        slurm.log(Level::Error, &line);
        return Verdict::Leave;
    }
    slurm.set_script_env(SUBMIT, by);
    Verdict::Continue
}

/// `slurm_spank_job_prolog`: `init` has not run.
pub fn job_prolog(slurm: &mut dyn Slurm, node: &dyn Node, _: &mut State, words: &[String]) -> Verdict {
    match Arguments::parse(words) {
        Ok(arguments) if arguments.scope != Scope::Step => job_script::prolog(slurm, node, &arguments),
        _ => Verdict::Continue,
    }
}

/// `slurm_spank_job_epilog`: `init` has not run, and maybe no job_prolog either.
pub fn job_epilog(slurm: &mut dyn Slurm, node: &dyn Node, _: &mut State, words: &[String]) -> Verdict {
    // Also under scope=step: a slurmstepd that was killed left its step's daemon. And also with a broken line, by the
    // defaults: a line that was changed under running jobs leaves none of them behind.
    job_script::epilog(slurm, node, &Arguments::parse(words).unwrap_or_default())
}

/// `slurm_spank_task_init`.
pub fn task_init(slurm: &mut dyn Slurm, node: &dyn Node, state: &mut State, words: &[String]) -> Verdict {
    match slurm.context() {
        Context::Remote => task::begin(slurm, node, state, &Arguments::parse(words)),
        _ => Verdict::Continue,
    }
}

/// `slurm_spank_exit`.
pub fn exit(slurm: &mut dyn Slurm, node: &dyn Node, state: &mut State, words: &[String]) -> Verdict {
    if slurm.context() == Context::Remote && state.own_daemon {
        let arguments = Arguments::parse(words).unwrap_or_default();
        stepd::end(slurm, node, state, &arguments);
    }
    Verdict::Continue
}
