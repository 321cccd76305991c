//! A request on its way to a plan.

use mpsd_core::config::Settings;
use mpsd_core::request::{Key, Mode, Request, Syntax};
use mpsd_core::text::one_line;
use mpsd_core::{Gpu, Inventory, Refusal};

/// Longest word of the user's that a refusal repeats. Characters.
const SHOWN: usize = 60;

/// A request on the job's GPUs.
#[derive(Debug, Clone)]
pub(super) struct Draft<'a> {
    /// What the user wrote.
    pub written: &'a Request,
    pub syntax: Syntax,
    /// The same with the site's defaults.
    pub request: Request,
    pub settings: &'a Settings,
    pub inventory: &'a Inventory,
    /// The job's.
    pub gpus: Vec<&'a Gpu>,
    /// The job's tasks on this node, if the scheduler says how many.
    pub tasks: Option<u32>,
    /// How many of them can meet on a GPU.
    pub meeting: Option<u32>,
}

impl Draft<'_> {
    /// Refuses the user's word of `key`.
    pub fn refuse(&self, key: Key, why: impl Into<String>, allowed: impl Into<String>) -> Refusal {
        let word = self.syntax.token(key, self.request.value(key).as_deref());
        Refusal::new(one_line(&word, SHOWN), why, allowed)
    }

    /// How many tasks of the job meet on one of its GPUs by `rule`.
    pub fn tasks_that_meet(&self, rule: impl Fn(u32, u32) -> u32) -> Option<u32> {
        let gpus = u32::try_from(self.gpus.len().max(1)).unwrap_or(u32::MAX);
        self.tasks.map(|tasks| rule(tasks, gpus))
    }

    /// A daemon that sees GPUs of mixed generation serves the newer ones only, and says nothing
    /// (docs/facts/mps-control.md#which-gpus-a-client-sees).
    pub fn check_generations(&self) -> Result<(), Refusal> {
        let old = self.gpus.iter().find(|gpu| !gpu.is_volta_or_later());
        let new = self.gpus.iter().find(|gpu| gpu.is_volta_or_later());
        match old.zip(new) {
            Some((old, new)) if self.request.mode != Mode::PerGpu => Err(Refusal::new(
                format!("one MPS daemon for '{}' and '{}'", old.name, new.name),
                "one daemon serves only GPUs before Volta, or only later ones",
                "MPS=per-gpu, one daemon for each GPU",
            )),
            _ => Ok(()),
        }
    }
}
