//! One node of a scheduler, as it is taken out of service and back.

use mpsd_core::JobId;
use std::path::PathBuf;

/// A node as its scheduler shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// It takes no new jobs because somebody said so.
    pub drained: bool,
    /// The reason of the drain, or the note that an administrator left on a node in service.
    pub reason: Option<String>,
}

/// How a job stands that was to go back into the queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requeued {
    /// Why the order was turned down: another of its nodes gave it before, or the job does not go back. One line.
    pub failed: Option<String>,
    /// It waits for its user, who releases it; else it starts again.
    pub held: bool,
    /// What the line that its user is told begins with: the number of this failed start, for the next one to find.
    pub number: Option<String>,
    /// What beside the requeue could not be done. One line.
    pub trouble: Option<String>,
}

/// A scheduler's way to take one node out of service: single orders and questions, of which [`super::drain`] makes a drain.
pub trait Controller {
    /// The node as it stands.
    ///
    /// # Errors
    /// One line: the controller does not answer, or does not know the node.
    fn status(&self) -> Result<NodeStatus, String>;
    /// Takes it out of service for `reason`, in the place of the `memo` that an administrator left on it. Returns what the
    /// command said.
    ///
    /// # Errors
    /// One line.
    fn take_out(&self, reason: &str, memo: Option<&str>) -> Result<String, String>;
    /// Puts it back, with `memo` in the place of the reason. Returns what the command said.
    ///
    /// # Errors
    /// One line.
    fn put_back(&self, memo: Option<&str>) -> Result<String, String>;
    /// The line about an order that was accepted and not obeyed, after which the command said `said`.
    fn not_obeyed(&self, said: &str) -> String {
        format!("the scheduler accepted the order and did nothing ({said})")
    }
    /// Shows `note` on the node, which stays in service. Returns what the command said.
    ///
    /// # Errors
    /// One line.
    fn remark(&self, _note: &str) -> Result<String, String> {
        Err("this scheduler has no place for it".to_owned())
    }
    /// Takes `note` of ours off the node if it is in service and shows it still; then it shows `memo` again.
    ///
    /// # Errors
    /// One line.
    fn withdraw(&self, note: &str, memo: Option<&str>) -> Result<(), String>;
    /// Tells the user of a job of this node why it has no MPS, where he looks at his job, and with `aloud` where he waits for
    /// it. Nothing where the job's own ways do.
    ///
    /// # Errors
    /// One line.
    fn tell(&self, _job: &JobId, _line: &str, _aloud: bool) -> Result<(), String> {
        Ok(())
    }
    /// Tells the user of a batch job of this node that ends refused, where its output is never delivered.
    ///
    /// # Errors
    /// One line.
    fn tell_refused(&self, _job: &JobId, _line: &str) -> Result<(), String> {
        Ok(())
    }
    /// The file that will have the output of a batch job of this node that went back into the queue; `None`: the scheduler names none.
    ///
    /// # Errors
    /// One line.
    fn output(&self, _job: &JobId) -> Result<Option<PathBuf>, String> {
        Ok(None)
    }
    /// A start of a job of this node that had been tried before has worked: what [`Controller::tell`] said of those is over.
    ///
    /// # Errors
    /// One line.
    fn started(&self, _job: &JobId) -> Result<(), String> {
        Ok(())
    }
    /// Puts a job of this node back into the queue; held there once `most` starts of its MPS had failed before (0: no limit).
    ///
    /// # Errors
    /// One line.
    fn requeue(&self, _job: &JobId, _most: u32) -> Result<Requeued, String> {
        Err("this scheduler does not do that for us".to_owned())
    }
    /// Ends a job of this node that is a script; whether it is one.
    ///
    /// # Errors
    /// One line.
    fn end_script(&self, _job: &JobId) -> Result<bool, String> {
        Err("this scheduler does not do that for us".to_owned())
    }
}
