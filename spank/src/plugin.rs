//! Each callback, by the program that Slurm runs.

use crate::arguments::{Arguments, Scope};
use crate::handle::{Context, Level, Node, Slurm, Verdict};
use crate::state::PluginState;
use crate::{ending, job_script, stepd, submission, task};
use mpsd_core::request::Key;

/// What Slurm calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callback {
    Init,
    InitPostOpt,
    /// In a process of its own, without [`Callback::Init`], as [`Callback::JobEpilog`].
    JobProlog,
    JobEpilog,
    TaskInit,
    TaskExit,
    Exit,
}

/// Runs one callback; `words` are those of the plugin's line in plugstack.conf.
pub fn call(
    callback: Callback,
    slurm: &mut dyn Slurm,
    node: &dyn Node,
    state: &mut PluginState,
    words: &[String],
) -> Verdict {
    use Context::{Allocator, Local, Remote};
    if task::is_second_line(words) {
        return match (callback, slurm.context()) {
            (Callback::TaskInit, Remote) => task::check_container(slurm, node),
            _ => Verdict::Continue,
        };
    }
    match (callback, slurm.context()) {
        (Callback::Init, _) => {
            *state = PluginState::new(words);
            init(slurm, state);
            Verdict::Continue
        }
        (Callback::InitPostOpt, context) => {
            state.request = state.flags.request();
            match context {
                Local | Allocator => submission::check(slurm, state),
                Remote => stepd::begin(slurm, node, state),
                _ => Verdict::Continue,
            }
        }
        (Callback::JobProlog, _) => match Arguments::parse(words) {
            Ok(arguments) if arguments.scope != Scope::Step => job_script::prolog(slurm, node, &arguments),
            _ => Verdict::Continue,
        },
        // Also under scope=step, because a killed slurmstepd leaves its step's daemon. A broken line counts as an empty
        // one, so that a line changed under running jobs leaves none of them behind.
        (Callback::JobEpilog, _) => {
            job_script::epilog(slurm, node, &Arguments::parse(words).unwrap_or_default())
        }
        (Callback::TaskInit, Remote) => task::begin(slurm, node, state),
        (Callback::TaskExit, Remote) => {
            ending::of_task(slurm, node, state);
            Verdict::Continue
        }
        (Callback::Exit, Remote) => stepd::end(slurm, node, state),
        _ => Verdict::Continue,
    }
}

fn init(slurm: &mut dyn Slurm, state: &PluginState) {
    let context = slurm.context();
    if matches!(context, Context::Local | Context::Allocator) {
        submission::forget_inherited(slurm);
    }
    match (context, &state.line) {
        // Also with a broken line: an unknown flag would not tell the user why.
        (Context::Local | Context::Allocator | Context::Remote, _) => {
            for key in Key::ALL {
                slurm.register(key);
            }
        }
        // Only slurmd reports a broken line unasked: once, in its log.
        (Context::Slurmd, Err(why)) => slurm.log(Level::Error, &format!("inert: {why}")),
        _ => {}
    }
}

/// Takes one option; returns a refusal to be told. On a node it is too late to refuse: the prolog and the task do.
pub fn option(state: &mut PluginState, key: Key, argument: Option<&str>, remote: bool) -> Option<String> {
    let refusal = state.flags.take(key, argument).err()?;
    (!remote).then(|| refusal.to_string())
}
