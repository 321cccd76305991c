//! Each callback, by the program that Slurm runs.

use crate::handle::{Context, Level, Node, Slurm, Verdict};
use crate::state::PluginState;
use crate::{ending, job_prolog, step, submission, task};
use mpsd_core::plugin_line::Arguments;
use mpsd_core::request::Key;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callback {
    Init,
    InitPostOpt,
    /// In a process of its own, without [`Callback::Init`].
    JobProlog,
    JobEpilog,
    TaskInit,
    TaskExit,
    Exit,
}

pub fn call(
    callback: Callback,
    slurm: &mut dyn Slurm,
    node: &dyn Node,
    state: &mut PluginState,
    words: &[String],
) -> Verdict {
    use Context::{Allocator, Local, Remote};
    let is_second_line = task::is_second_line(words);
    match (callback, slurm.context()) {
        (Callback::TaskInit, Remote) if is_second_line => {
            return task::check_container(slurm, node);
        }
        _ if is_second_line => {}
        (Callback::Init, context) => {
            *state = PluginState::new(words);
            init(slurm, state, context);
        }
        (Callback::InitPostOpt, Local | Allocator) => return submission::check(slurm, state),
        (Callback::InitPostOpt, Remote) => step::begin(slurm, node, state),
        (Callback::JobProlog, _) => {
            if let Ok(arguments) = Arguments::parse(words) {
                return job_prolog::prolog(slurm, node, &arguments);
            }
        }
        // If the line is invalid, clean up with the defaults: jobs from before the edit still end.
        (Callback::JobEpilog, _) => {
            job_prolog::epilog(slurm, node, &Arguments::parse(words).unwrap_or_default());
        }
        (Callback::TaskInit, Remote) => return task::begin(slurm, node, state),
        (Callback::TaskExit, Remote) => ending::of_task(slurm, node, state),
        (Callback::Exit, Remote) => step::end(slurm, node, state),
        _ => {}
    }
    Verdict::Continue
}

fn init(slurm: &mut dyn Slurm, state: &PluginState, context: Context) {
    use Context::{Allocator, Local, Remote};
    if matches!(context, Local | Allocator) {
        submission::forget_inherited(slurm);
    }
    match (context, &state.line) {
        // Also with a broken line: an unknown flag would not tell the user why.
        (Local | Allocator | Remote, _) => Key::ALL.into_iter().for_each(|key| slurm.register(key)),
        // Only slurmd reports a broken line unasked: once, in its log.
        (Context::Slurmd, Err(why)) => slurm.log(Level::Error, &format!("inert: {why}")),
        _ => {}
    }
}
