//! A job whose tasks could run outside its MPS without a word.

use crate::scheduler::Unattached;
use mpsd_core::Failure;
use mpsd_core::config::UnattachedTasks;
use mpsd_core::failure::{Evidence, Fault, Refusal};

/// Whether such a job gets its MPS; then the line for its own error file, if anything is missing.
///
/// # Errors
/// A refusal on the job's first node, where its user reads it. On a Torque sister it is the configuration's fault: a
/// sister has nobody to tell, and tasks that TM starts there would run bare.
pub fn decide(
    missing: Option<Unattached>,
    sister: bool,
    rule: UnattachedTasks,
) -> Result<Option<String>, Failure> {
    let Some(Unattached {
        why,
        remedy,
        no_way_round,
    }) = missing
    else {
        return Ok(None);
    };
    if rule == UnattachedTasks::Warn && !no_way_round {
        return Ok(Some(format!(
            "{why}: such a task runs outside MPS unless it is 'mpsctl exec -- COMMAND'"
        )));
    }
    if sister {
        let why = format!("{why}; it needs {remedy}");
        return Err(Fault::new(Evidence::Configuration, "tasks started by TM", why).into());
    }
    Err(Refusal::new("MPS", why, format!("after {remedy}")).into())
}

#[cfg(test)]
mod tests;
