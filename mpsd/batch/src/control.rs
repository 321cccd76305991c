//! What a scheduler knows of one node and its jobs, and the orders that it takes about them.

use mpsd_core::JobId;
use std::path::PathBuf;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// An order keeps new jobs away from it.
    pub drained: bool,
    /// The reason of the drain, or an administrator's note on a node in service.
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requeued {
    /// Why the scheduler refused: another of the job's nodes was first, or it cannot be requeued.
    pub failed: Option<String>,
    /// It waits until its user releases it; else it starts again.
    pub held: bool,
    /// How the line for its user begins: with the number of this failed start, for the next one.
    pub number: Option<String>,
    pub trouble: Option<String>,
}

/// A scheduler's single orders and questions about one node; [`super::drain`] makes a drain of
/// them. Every error is one line. What an order returns is what its command said.
pub trait Controller {
    fn status(&self) -> Result<NodeStatus, String>;
    /// Takes it out of service for `reason`, which replaces the `memo` of an administrator.
    fn take_out(&self, reason: &str, memo: Option<&str>) -> Result<String, String>;
    /// Puts it back, with `memo` in the place of the reason.
    fn put_back(&self, memo: Option<&str>) -> Result<String, String>;
    /// The line about an order that was accepted but not obeyed. `said`: what the command answered.
    fn not_obeyed(&self, said: &str) -> String {
        format!("the scheduler accepted the order and did nothing ({said})")
    }
    fn remark(&self, _note: &str) -> Result<String, String> {
        Err("this scheduler has no place for it".to_owned())
    }
    /// Takes our `note` off a node in service that still shows it; then it shows `memo` again.
    fn withdraw(&self, note: &str, memo: Option<&str>) -> Result<(), String>;
    /// Tells the user of a job why it has no MPS, unless the job's own output does: in the job's
    /// status, and with `aloud` on their terminal. `refused`: it is a batch job that was refused.
    fn tell(&self, _job: &JobId, _line: &str, _aloud: bool, _refused: bool) -> Result<(), String> {
        Ok(())
    }
    /// The file for the output of a batch job that went back into the queue, if named.
    fn output(&self, _job: &JobId) -> Result<Option<PathBuf>, String> {
        Ok(None)
    }
    /// Takes back what [`Controller::tell`] said of failed starts: one here has worked.
    fn started(&self, _job: &JobId) -> Result<(), String> {
        Ok(())
    }
    /// Puts a job back into the queue; held there if `most` earlier starts of its MPS failed (0: no
    /// limit).
    fn requeue(&self, _job: &JobId, _most: u32) -> Result<Requeued, String> {
        Err("this scheduler does not do that for us".to_owned())
    }
    /// Ends a job if it is a batch script. Returns whether it is one.
    fn end_script(&self, _job: &JobId) -> Result<bool, String> {
        Err("this scheduler does not do that for us".to_owned())
    }
}

/// Whether a scheduler still has a job on a node, and why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    /// It is there, or on its way in or out.
    Here,
    Gone(String),
    /// No answer, or one that is not understood.
    Undecided(String),
}

/// Asked by `cli/reconcile.rs`, also in Torque's prologue, and `node/unbegun.rs`; by no epilogue.
pub type KnownJobs = Box<dyn Fn(&JobId) -> JobState>;
