//! What the callbacks of one process share.

use crate::arguments::Arguments;
use mpsd_core::config::Settings;
use mpsd_core::observations::LimitSet;
use mpsd_core::request::Flags;
use mpsd_core::{Refusal, Request};
use std::fs::File;

/// Made by `slurm_spank_init`; a task's forked child inherits slurmstepd's.
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
