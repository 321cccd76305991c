//! What a task saw: the record that the program `slurm-witness` leaves for each.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::simulated::Record;

/// File name of the program, beside the other programs of the build.
pub const WITNESS: &str = "slurm-witness";

/// One task, as it saw itself.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Witness {
    /// Which of its job's commands started it.
    pub label: String,
    /// The node it ran on.
    pub node: String,
    /// File names of the GPUs on which it had a context.
    pub devices: BTreeSet<String>,
    /// File names of the GPUs that it may open.
    pub may_open: BTreeSet<String>,
    /// Its whole environment.
    pub environment: BTreeMap<String, String>,
    /// Its limits by name, the soft one and the hard one.
    pub limits: BTreeMap<String, String>,
    /// What its CUDA program got.
    pub cuda: Record,
    /// The user of the control daemon that it attached to.
    pub daemon_uid: Option<u32>,
}

impl Witness {
    /// A variable that it saw.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str)
    }

    /// Its rank on its node; a batch script has none.
    pub fn local_rank(&self) -> usize {
        self.variable("SLURM_LOCALID")
            .and_then(|rank| rank.parse().ok())
            .unwrap_or(0)
    }

    /// The records below `dir`.
    pub fn all(dir: &Path) -> Result<Vec<Witness>> {
        let entries = std::fs::read_dir(dir).with_context(|| format!("cannot read '{}'", dir.display()))?;
        let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|file| file.extension().is_some_and(|end| end == "json"));
        files.sort();
        let read = |file: &std::path::PathBuf| {
            let text = std::fs::read_to_string(file)?;
            serde_json::from_str(&text).with_context(|| format!("no record: '{}'", file.display()))
        };
        files.iter().map(read).collect()
    }
}

/// What another user's job saw of the GPU that it had all the while.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Bystander {
    /// File name of its GPU.
    pub device: String,
    /// How often it opened a context.
    pub contexts: u64,
    /// What it should not have seen: a compute mode, a context that was refused.
    pub troubles: BTreeSet<String>,
}
