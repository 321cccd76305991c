//! What a teardown found, and a start that failed.

use mpsd_core::failure::{Fault, Undetermined};
use mpsd_core::{Failure, JobId};
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub struct Findings {
    pub faults: Vec<Fault>,
    /// What did not work and proves nothing.
    pub undetermined: Vec<Undetermined>,
    pub notes: Vec<String>,
    /// The jobs that shared an MPS that was taken down. A drain names them.
    pub sharers: BTreeSet<JobId>,
}

impl Findings {
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty() && self.undetermined.is_empty()
    }

    pub(super) fn allow_start(self, what: String, why: &str) -> Result<(), FailedStart> {
        if self.is_clean() {
            return Ok(());
        }
        Err(FailedStart {
            findings: self,
            ..Undetermined::new(what, why).into()
        })
    }

    /// Enters a failure once: a dead NVML fails for each GPU.
    pub fn take(&mut self, result: Result<(), Failure>) {
        match result {
            Ok(()) => {}
            Err(Failure::Fault(fault)) => push_new(&mut self.faults, fault),
            Err(Failure::Undetermined(u)) => push_new(&mut self.undetermined, u),
            Err(Failure::Refusal(r)) => push_new(&mut self.notes, r.to_string()),
        }
    }

    pub fn merge(&mut self, other: Self) {
        self.faults.extend(other.faults);
        self.undetermined.extend(other.undetermined);
        self.notes.extend(other.notes);
        self.sharers.extend(other.sharers);
    }
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, entry: T) {
    if !list.contains(&entry) {
        list.push(entry);
    }
}

#[derive(Debug)]
pub struct FailedStart {
    pub failure: Failure,
    /// What the rollback found. Its faults drain as well.
    pub findings: Findings,
    pub gpus: Vec<String>,
    /// Its job has ended meanwhile: do not tell its user, and do not put it back into a queue.
    pub job_ended: bool,
}

impl<F: Into<Failure>> From<F> for FailedStart {
    fn from(failure: F) -> Self {
        Self {
            failure: failure.into(),
            findings: Findings::default(),
            gpus: Vec::new(),
            job_ended: false,
        }
    }
}
