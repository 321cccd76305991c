//! The account of one GPU: which jobs use it, and the compute mode found before the first of them.

use mpsd_core::{ComputeMode, JobId};
use std::collections::BTreeSet;

const VERSION: u32 = 1;

/// `/run/mpsd/gpus/<uuid>`, root 0600, changed under its lock only.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Account {
    pub version: u32,
    pub users: BTreeSet<JobId>,
    pub found: ComputeMode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<ComputeMode>,
}

impl Account {
    /// `now`: the mode that the GPU has.
    pub fn enter(existing: Option<Self>, job: &JobId, now: ComputeMode) -> Self {
        let mut account = existing.unwrap_or(Self {
            version: VERSION,
            users: BTreeSet::new(),
            found: now,
            set: None,
        });
        account.users.insert(job.clone());
        account
    }

    /// The job must be alone on the GPU, and the mode found DEFAULT; `now` is that or ours.
    pub fn may_set(&self, job: &JobId, now: ComputeMode) -> Result<(), String> {
        if self.users.iter().any(|user| user != job) {
            return Err("another job uses the GPU".into());
        }
        if self.found != ComputeMode::Default {
            return Err(format!("the mode found is {}, not DEFAULT", self.found));
        }
        if now != ComputeMode::Default && self.set != Some(now) {
            return Err(format!("someone else has set {now}"));
        }
        Ok(())
    }

    /// Returns the mode to restore, if this was the last user. An error is a line for the log: the
    /// mode `now` stays, since someone else changed it.
    pub fn leave(&mut self, job: &JobId, now: ComputeMode) -> Result<Option<ComputeMode>, String> {
        self.users.remove(job);
        match self.set {
            Some(set) if self.users.is_empty() && now != self.found => match set == now {
                true => Ok(Some(self.found)),
                false => Err(format!(
                    "compute mode is {now}, but mpsd set {set} over {}: someone changed it since, so it stays",
                    self.found
                )),
            },
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ComputeMode::{Default, ExclusiveProcess, Prohibited};

    #[test]
    fn only_a_job_alone_on_a_gpu_found_in_default_may_set_a_mode() {
        let [one, two] = ["1", "2"].map(|id| JobId::parse(id).unwrap());
        let alone = Account::enter(None, &one, Default);
        assert_eq!(alone.may_set(&one, Default), Ok(()));
        assert!(
            alone.may_set(&one, Prohibited).is_err(),
            "someone else set it"
        );
        let found_exclusive = Account::enter(None, &one, ExclusiveProcess);
        assert!(found_exclusive.may_set(&one, ExclusiveProcess).is_err());
        let shared = Account::enter(Some(alone), &two, Default);
        assert!(shared.may_set(&two, Default).is_err());
    }

    #[test]
    fn the_last_job_restores_the_mode_unless_someone_else_changed_it_meanwhile() {
        let [one, two] = ["1", "2"].map(|id| JobId::parse(id).unwrap());
        let mut account = Account::enter(None, &one, Default);
        account.set = Some(ExclusiveProcess);
        let mut account = Account::enter(Some(account), &two, ExclusiveProcess);
        assert_eq!(account.leave(&one, ExclusiveProcess), Ok(None));
        assert!(account.clone().leave(&two, Prohibited).is_err());
        assert_eq!(account.leave(&two, ExclusiveProcess), Ok(Some(Default)));
    }
}
