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

/// What became of a job that was to go back into the queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requeued {
    /// Why the scheduler refused: another of the job's nodes gave the order first, or the job
    /// cannot be requeued. One line.
    pub failed: Option<String>,
    /// It waits until its user releases it; else it starts again.
    pub held: bool,
    /// How the line for its user begins: with the number of this failed start, for the next start
    /// to find.
    pub number: Option<String>,
    /// What failed beside the requeue. One line.
    pub trouble: Option<String>,
}

/// A scheduler's single orders and questions about one node. [`super::drain`] makes a drain of
/// them.
///
/// # Errors
/// Every method's error is one line: the controller does not answer, does not know the node, or
/// refuses.
pub trait Controller {
    fn status(&self) -> Result<NodeStatus, String>;
    /// Takes it out of service for `reason`, which replaces the `memo` of an administrator. Returns
    /// what the command said.
    fn take_out(&self, reason: &str, memo: Option<&str>) -> Result<String, String>;
    /// Puts it back, with `memo` in the place of the reason. Returns what the command said.
    fn put_back(&self, memo: Option<&str>) -> Result<String, String>;
    /// The line about an order that was accepted but not obeyed. `said`: what the command answered.
    fn not_obeyed(&self, said: &str) -> String {
        format!("the scheduler accepted the order and did nothing ({said})")
    }
    /// Shows `note` on the node, which stays in service. Returns what the command said.
    fn remark(&self, _note: &str) -> Result<String, String> {
        Err("this scheduler has no place for it".to_owned())
    }
    /// Takes our `note` off a node in service that still shows it; then it shows `memo` again.
    fn withdraw(&self, note: &str, memo: Option<&str>) -> Result<(), String>;
    /// Tells the user of a job of this node why it has no MPS: in the job's status, and with
    /// `aloud` on their terminal. `refused`: it is a batch job that was refused. Does nothing if
    /// the job's own output tells it.
    fn tell(&self, _job: &JobId, _line: &str, _aloud: bool, _refused: bool) -> Result<(), String> {
        Ok(())
    }
    /// The file for the output of a batch job of this node that went back into the queue; `None`:
    /// the scheduler names none.
    fn output(&self, _job: &JobId) -> Result<Option<PathBuf>, String> {
        Ok(None)
    }
    /// Takes back what [`Controller::tell`] said of failed starts, since a start of the job on this
    /// node has worked.
    fn started(&self, _job: &JobId) -> Result<(), String> {
        Ok(())
    }
    /// Puts a job of this node back into the queue; held there if `most` starts of its MPS failed
    /// before (0: no limit).
    fn requeue(&self, _job: &JobId, _most: u32) -> Result<Requeued, String> {
        Err("this scheduler does not do that for us".to_owned())
    }
    /// Ends a job of this node if it is a batch script. Returns whether it is one.
    fn end_script(&self, _job: &JobId) -> Result<bool, String> {
        Err("this scheduler does not do that for us".to_owned())
    }
}

/// Whether a scheduler still has a job on a node. No answer, or one that is not understood, decides
/// nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    /// It is there, or on its way in or out.
    Here,
    /// It is not: why.
    Gone(String),
    /// Not known: why.
    Undecided(String),
}

/// Tells whether a scheduler has a job on one node. Only `mpsctl reconcile` asks, never a prologue
/// or an epilogue.
pub type KnownJobs = Box<dyn Fn(&JobId) -> JobState>;
