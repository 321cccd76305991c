//! What the callbacks of one process share.

use crate::arguments::Arguments;
use mpsd_core::config::Settings;
use mpsd_core::observations::LimitSet;
use mpsd_core::request::Flags;
use mpsd_core::{Refusal, Request};
use std::fs::File;

/// Made by `init`; a task's forked child inherits slurmstepd's.
#[derive(Debug)]
pub struct State {
    /// The line in plugstack.conf, or why it is unusable: nothing is done then, and who asks is told.
    pub line: Result<Arguments, String>,
    /// The flags as they arrive.
    pub flags: Flags,
    /// The request that they make, once all are there; `None`: there is no flag. An honest submission has no refusal.
    pub request: Result<Option<Request>, Refusal>,
    /// The configuration, read by slurmstepd as root; `None` in the steps that have no use for it.
    pub settings: Option<Result<Settings, String>>,
    /// The job, or the step, had a record when it began.
    pub has_mps: bool,
    /// The step's own daemon was asked of `mps-prologue`.
    pub own_daemon: bool,
    /// How many GPUs the step has, where Slurm names them. A task may have fewer.
    pub gpus: Option<u32>,
    /// What it locks while its ranks have the job's static partitions, or why it cannot; `None`: the job has none.
    pub ranks: Option<Result<File, String>>,
    /// The limits that `mpsctl set` gave the job's clients before the step began.
    pub set: Vec<LimitSet>,
    /// How many of its tasks on this node have ended.
    pub ended: u32,
    /// Its user has read why its MPS failed.
    pub told: bool,
    /// Why the step has none.
    pub failure: Option<String>,
}

impl State {
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
            ranks: None,
            set: Vec::new(),
            ended: 0,
            told: false,
            failure: None,
        }
    }
}

impl State {
    /// Whether the flags, right or wrong, ask for MPS.
    pub fn asks(&self) -> bool {
        match &self.request {
            Ok(request) => request.as_ref().is_some_and(Request::is_on),
            Err(_) => true,
        }
    }

    /// Whether the flags say `--mps=off`.
    pub fn opts_out(&self) -> bool {
        matches!(&self.request, Ok(Some(request)) if !request.is_on())
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new(&[])
    }
}
