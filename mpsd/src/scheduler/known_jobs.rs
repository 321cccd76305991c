//! Whether a scheduler still has a job on this node. Asked by `mpsctl reconcile` only, never on a job's own way.
//!
//! Nothing is decided by silence: a controller that does not answer, or an answer that is not understood, leaves the
//! job alone.

use mpsd_core::JobId;

/// What a scheduler says of a job on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    /// It is here, or on its way in or out.
    Here,
    /// It is not: why.
    Gone(String),
    /// Nobody knows: why.
    Undecided(String),
}

/// What a scheduler knows of the jobs of one node. It may keep one answer for all of them.
pub trait KnownJobs {
    /// Whether it has `job` there.
    fn state_of(&self, job: &JobId) -> JobState;
}
