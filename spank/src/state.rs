//! What the callbacks of one process share.

use mpsd_core::config::Settings;
use mpsd_core::plugin_line::Arguments;
use mpsd_core::request::{Flags, Key};
use mpsd_core::{Refusal, Request};

/// Made by `slurm_spank_init`; a task's forked child inherits slurmstepd's.
#[derive(Debug)]
pub struct PluginState {
    /// The line in plugstack.conf, or why it is unusable: then a user who asks for MPS is told.
    pub line: Result<Arguments, String>,
    flags: Flags,
    /// What the flags ask for together; `None`: there is no flag.
    pub request: Result<Option<Request>, Refusal>,
    /// What submits: the first component of a het job, or the only one, has been looked at.
    pub has_checked: bool,
    pub step: StepState,
}

#[derive(Debug, Default)]
pub struct StepState {
    /// Read as root; `None` in steps that do not need it.
    pub settings: Option<Result<Settings, String>>,
    /// The job, or the step, had a record when the step began.
    pub has_mps: bool,
    pub own_daemon: bool,
    pub first_task_ended: bool,
    /// Why it has no daemon of its own.
    pub failure: Option<String>,
    /// Why `auto` gives it none.
    pub unneeded: Option<String>,
    /// Why it runs without MPS, in a job that the site brought in.
    pub left_out: Option<String>,
    /// How many GPUs it has, if Slurm names them. A task may have fewer.
    pub gpus: Option<u32>,
    pub ended_tasks: u32,
    pub has_told: bool,
}

impl PluginState {
    pub fn new(words: &[String]) -> Self {
        Self {
            line: Arguments::parse(words),
            flags: Flags::default(),
            request: Ok(None),
            has_checked: false,
            step: StepState::default(),
        }
    }

    /// Returns a refusal to be told. On a node (`remote`) the prolog and the task refuse.
    pub fn take(&mut self, key: Key, argument: Option<&str>, remote: bool) -> Option<Refusal> {
        let taken = self.flags.take(key, argument);
        self.request = self.flags.request();
        taken.err().filter(|_| !remote)
    }

    pub fn imply_mode(&mut self) {
        self.flags.imply_mode();
        self.request = self.flags.request();
    }

    pub fn request_on(&self) -> Option<&Request> {
        let request = self.request.as_ref().ok()?.as_ref();
        request.filter(|request| request.is_on())
    }

    /// Whether the flags, right or wrong, ask for MPS.
    pub fn asks(&self) -> bool {
        self.request.is_err() || self.request_on().is_some()
    }

    pub fn opts_out(&self) -> bool {
        matches!(&self.request, Ok(Some(request)) if !request.is_on())
    }
}
