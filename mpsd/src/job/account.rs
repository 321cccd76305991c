//! The account of one GPU: which jobs use it, and the compute mode found before the first of them.

use mpsd_core::{ComputeMode, JobId};
use std::collections::BTreeSet;

/// Version of the format.
pub const VERSION: u32 = 1;

/// `/run/mpsd/gpus/<uuid>`, root 0600, changed under its lock only.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Account {
    /// [`VERSION`].
    pub version: u32,
    /// The jobs that hold the GPU.
    pub users: BTreeSet<JobId>,
    /// The compute mode before the first of them.
    pub found: ComputeMode,
    /// The mode that we set, or were about to set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<ComputeMode>,
}

/// What leaving an account asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leave {
    /// The account as it stands afterwards; `None`: remove it.
    pub account: Option<Account>,
    /// The mode to restore now.
    pub restore: Option<ComputeMode>,
    /// A line for the log.
    pub note: Option<String>,
}

impl Account {
    /// `job` enters; `now` is the mode that the GPU has.
    pub fn join(existing: Option<Self>, job: &JobId, now: ComputeMode) -> Self {
        let mut account = existing.unwrap_or(Self {
            version: VERSION,
            users: BTreeSet::new(),
            found: now,
            set: None,
        });
        account.users.insert(job.clone());
        account
    }

    /// Whether `job` may set a mode: it is alone on the GPU, the mode found was DEFAULT and is still in force.
    pub fn may_set(&self, job: &JobId, now: ComputeMode) -> Result<(), String> {
        if self.users.iter().any(|user| user != job) {
            return Err("another job uses the GPU".into());
        }
        if self.found != ComputeMode::Default || (now != ComputeMode::Default && self.set != Some(now)) {
            return Err(format!("the mode found is {now}, not DEFAULT"));
        }
        Ok(())
    }

    /// `job` leaves; `now` is the mode that the GPU has. The last user restores what was found, unless somebody else
    /// changed it meanwhile.
    pub fn leave(mut self, job: &JobId, now: ComputeMode) -> Leave {
        self.users.remove(job);
        if !self.users.is_empty() {
            return Leave {
                account: Some(self),
                restore: None,
                note: None,
            };
        }
        let (restore, note) = match self.set {
            Some(set) if set == now && now != self.found => (Some(self.found), None),
            Some(set) if now != self.found => {
                let note = format!(
                    "compute mode is {now}, we set {set} over {}: left as somebody made it",
                    self.found
                );
                (None, Some(note))
            }
            _ => (None, None),
        };
        Leave {
            account: None,
            restore,
            note,
        }
    }
}

#[cfg(test)]
mod tests;
