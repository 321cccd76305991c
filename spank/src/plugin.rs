//! Each callback, by the program that Slurm runs, and the state that the callbacks of one process share.

use crate::arguments::{Arguments, Scope};
use crate::handle::{Context, Level, Node, Slurm, Verdict};
use crate::{ending, job_script, stepd, submission, task};
use mpsd_core::config::Settings;
use mpsd_core::observations::LimitSet;
use mpsd_core::request::{Flags, Key};
use mpsd_core::{Refusal, Request};
use std::fs::File;

/// Made by [`Callback::Init`]; a task's forked child inherits slurmstepd's.
#[derive(Debug)]
pub struct PluginState {
    /// The line in plugstack.conf, or why it is unusable: then nothing is done, and a user who asks for MPS is told.
    pub line: Result<Arguments, String>,
    /// The flags as they arrive.
    pub flags: Flags,
    /// The request that they make, once all are there; `Ok(None)`: no flag. An honest submission has no refusal.
    pub request: Result<Option<Request>, Refusal>,
    /// The configuration, read by slurmstepd as root; `None` in steps that do not need it.
    pub settings: Option<Result<Settings, String>>,
    /// The job, or the step, had a record when the step began.
    pub has_mps: bool,
    /// `mps-prologue` was run for a daemon of the step's own.
    pub own_daemon: bool,
    /// How many GPUs the step has, if Slurm names them. A task may have fewer.
    pub gpus: Option<u32>,
    /// The lock of the job's static partitions, or why it does not open; `None`: the job has none.
    pub partitions_lock: Option<Result<File, String>>,
    /// The limits that `mpsctl set` gave the job's clients before the step began.
    pub limits_set: Vec<LimitSet>,
    /// How many of the step's tasks on this node have ended.
    pub ended_tasks: u32,
    /// Its user has read why its MPS failed.
    pub has_told: bool,
    /// Why the step has no daemon of its own.
    pub failure: Option<String>,
}

impl PluginState {
    /// Before any flag has arrived; `words` are those of plugstack.conf.
    pub fn new(words: &[String]) -> Self {
        Self {
            line: Arguments::parse(words),
            flags: Flags::default(),
            request: Ok(None),
            settings: None,
            has_mps: false,
            own_daemon: false,
            gpus: None,
            partitions_lock: None,
            limits_set: Vec::new(),
            ended_tasks: 0,
            has_told: false,
            failure: None,
        }
    }

    /// The request of flags that ask for MPS.
    pub fn request_on(&self) -> Option<&Request> {
        self.request.iter().flatten().find(|request| request.is_on())
    }

    /// Whether the flags, right or wrong, ask for MPS.
    pub fn asks(&self) -> bool {
        self.request.is_err() || self.request_on().is_some()
    }

    /// Whether the flags say `--mps=off`.
    pub fn opts_out(&self) -> bool {
        matches!(&self.request, Ok(Some(request)) if !request.is_on())
    }
}

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
