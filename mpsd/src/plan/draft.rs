//! A request on its way to a plan.

use batch::Part;
use mpsd_core::bind::{Bind, DeviceNames};
use mpsd_core::config::Settings;
use mpsd_core::request::{Key, MemoryLimit, Mode, Request, Syntax, Threads};
use mpsd_core::text::one_line;
use mpsd_core::{Gpu, Inventory, Refusal};

/// Longest word of the user's that a refusal repeats. Characters.
const SHOWN: usize = 60;
pub(super) const NO_PART: &str = "the scheduler does not say which part of the GPU the job has";
pub(super) const NO_TASKS: &str = "the scheduler does not say how many tasks the job has on a GPU";

#[derive(Debug, Clone)]
pub struct Asked {
    /// As its user wrote it.
    pub request: Request,
    pub syntax: Syntax,
    /// The site asks, not the user ([`batch::Submission::by_site`]).
    pub by_site: bool,
}

/// A request on the job's GPUs, with the site's defaults in `filled`.
#[derive(Debug, Clone)]
pub(super) struct Draft<'a> {
    pub asked: &'a Asked,
    pub filled: Request,
    pub settings: &'a Settings,
    pub inventory: &'a Inventory,
    pub gpus: Vec<&'a Gpu>,
    /// On this node, if the scheduler says how many.
    pub tasks: Option<u32>,
    /// How many of the tasks can meet on a GPU.
    pub meeting: Option<u32>,
    /// Other jobs may use its GPUs too.
    pub may_share: bool,
    /// The user's jobs share one MPS on each of these.
    pub shared: bool,
    /// The job's part of each of its GPUs, if jobs share them and the scheduler tells the parts.
    pub part: Option<Part>,
    pub bind: Bind,
    pub names: DeviceNames,
    /// MPS clients that each of the GPUs takes, if known.
    pub clients: Option<u32>,
}

impl Draft<'_> {
    pub fn refuse(&self, key: Key, why: impl Into<String>, allowed: impl Into<String>) -> Refusal {
        let value = self.filled.value(key);
        let word = self.asked.syntax.token(key, value.as_deref());
        Refusal::new(one_line(&word, SHOWN), why, allowed)
    }

    pub fn check_shared(&self) -> Result<(), Refusal> {
        let request = &self.asked.request;
        let key = match request.mode {
            _ if !self.shared => return Ok(()),
            Mode::PerGpu => Key::Mode,
            _ if request.priority.is_some() => Key::Priority,
            _ => return Ok(()),
        };
        let own = self.asked.syntax.token(Key::Mode, Some("own"));
        let why =
            "your jobs on this GPU share one MPS, whose daemon has one setting for all of them";
        Err(self.refuse(key, why, format!("{own}, a daemon of this job's own")))
    }

    /// Without the job's part of a shared GPU, or its number of tasks, a site's `auto` sets no
    /// limit, and a note says so. The user's own `auto` is refused.
    pub fn forget_auto_of_site(&mut self) -> Vec<String> {
        let why = match self.shared {
            true if self.part.is_none() => NO_PART,
            false if self.tasks.is_none() => NO_TASKS,
            _ => return Vec::new(),
        };
        let mut forgotten = Vec::new();
        if self.asked.request.threads.is_none() && self.filled.threads == Some(Threads::Auto) {
            self.filled.threads = None;
            forgotten.push("threads");
        }
        if self.asked.request.memory.is_none() && self.filled.memory == Some(MemoryLimit::Auto) {
            self.filled.memory = None;
            forgotten.push("mem");
        }
        let note = |key| format!("[defaults] {key} = \"auto\" sets no limit: {why}");
        forgotten.into_iter().map(note).collect()
    }

    pub fn tasks_that_meet(&self, rule: impl Fn(u32, u32) -> u32) -> Option<u32> {
        let gpus = u32::try_from(self.gpus.len().max(1)).unwrap_or(u32::MAX);
        self.tasks.map(|tasks| rule(tasks, gpus))
    }

    /// Before Volta clients share one address space, and nothing here was tried there.
    pub fn check_generations(&self) -> Result<(), Refusal> {
        match self.gpus.iter().find(|gpu| !gpu.is_volta_or_later()) {
            Some(old) => Err(Refusal::new(
                format!("MPS on GPU {} '{}'", old.index, old.name),
                "it is older than Volta",
                "GPUs from Volta on",
            )),
            None => Ok(()),
        }
    }
}
