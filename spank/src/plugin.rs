//! The way in of each callback: it chooses by the program that Slurm runs, and does nothing else.

use crate::arguments::{Arguments, Scope};
use crate::handle::{Context, Level, Node, Slurm, Verdict};
use crate::state::State;
use crate::submission::{self, Submitter};
use crate::{container, ending, job_script, stepd, task};
use mpsd_core::request::Key;

/// `slurm_spank_init`.
pub fn init(slurm: &mut dyn Slurm, _: &dyn Node, state: &mut State, words: &[String]) -> Verdict {
    if container::is_look(words) {
        return Verdict::Continue;
    }
    *state = State::new(words);
    if matches!(slurm.context(), Context::Local | Context::Allocator) {
        submission::forget_inherited(slurm);
    }
    match (slurm.context(), &state.line) {
        // Also with a broken line: an unknown flag would not tell the user why.
        (Context::Local | Context::Allocator | Context::Remote, _) => {
            for key in Key::ALL {
                slurm.register(key);
            }
        }
        // The one place where a broken line is said unasked: once, in slurmd's log.
        (Context::Slurmd, Err(why)) => slurm.log(Level::Error, &format!("inert: {why}")),
        (Context::Slurmd | Context::JobScript | Context::Unknown, _) => {}
    }
    Verdict::Continue
}

/// An option's callback; what comes back is a refusal to be told. On a node it is too late for that: the prolog and the
/// task say it.
pub fn option(state: &mut State, key: Key, argument: Option<&str>, remote: bool) -> Option<String> {
    let refusal = state.flags.take(key, argument).err()?;
    (!remote).then(|| refusal.to_string())
}

/// `slurm_spank_init_post_opt`.
pub fn init_post_opt(slurm: &mut dyn Slurm, node: &dyn Node, state: &mut State, words: &[String]) -> Verdict {
    if container::is_look(words) {
        return Verdict::Continue;
    }
    state.request = state.flags.request();
    match slurm.context() {
        Context::Local => submission::check(slurm, state, Submitter::Srun),
        Context::Allocator => submission::check(slurm, state, Submitter::Allocator),
        Context::Remote => stepd::begin(slurm, node, state),
        Context::Slurmd | Context::JobScript | Context::Unknown => Verdict::Continue,
    }
}

/// `slurm_spank_job_prolog`: `init` has not run.
pub fn job_prolog(slurm: &mut dyn Slurm, node: &dyn Node, _: &mut State, words: &[String]) -> Verdict {
    match Arguments::parse(words) {
        _ if container::is_look(words) => Verdict::Continue,
        Ok(arguments) if arguments.scope != Scope::Step => job_script::prolog(slurm, node, &arguments),
        _ => Verdict::Continue,
    }
}

/// `slurm_spank_job_epilog`: `init` has not run, and maybe no job_prolog either.
pub fn job_epilog(slurm: &mut dyn Slurm, node: &dyn Node, _: &mut State, words: &[String]) -> Verdict {
    if container::is_look(words) {
        return Verdict::Continue;
    }
    // Also under scope=step: a slurmstepd that was killed left its step's daemon. And also with a broken line, by the
    // defaults: a line that was changed under running jobs leaves none of them behind.
    job_script::epilog(slurm, node, &Arguments::parse(words).unwrap_or_default())
}

/// `slurm_spank_task_init`.
pub fn task_init(slurm: &mut dyn Slurm, node: &dyn Node, state: &mut State, words: &[String]) -> Verdict {
    match slurm.context() {
        Context::Remote if container::is_look(words) => container::begin(slurm, node),
        Context::Remote => task::begin(slurm, node, state),
        _ => Verdict::Continue,
    }
}

/// `slurm_spank_task_exit`.
pub fn task_exit(slurm: &mut dyn Slurm, node: &dyn Node, state: &mut State, words: &[String]) -> Verdict {
    if slurm.context() == Context::Remote && !container::is_look(words) {
        ending::of_task(slurm, node, state);
    }
    Verdict::Continue
}

/// `slurm_spank_exit`.
pub fn exit(slurm: &mut dyn Slurm, node: &dyn Node, state: &mut State, words: &[String]) -> Verdict {
    match slurm.context() {
        _ if container::is_look(words) => Verdict::Continue,
        Context::Remote => stepd::end(slurm, node, state),
        _ => Verdict::Continue,
    }
}
