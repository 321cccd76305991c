//! What jobs left that are gone altogether: users of a GPU without a directory, locks without an owner.

use super::claim;
use super::node::Node;
use super::store::Store as _;
use mpsd_core::{Failure, GpuUuid, JobId};

/// What stands on a GPU in the name of jobs that have no directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stale {
    /// The GPU.
    pub gpu: GpuUuid,
    /// The jobs that its account names and that have no directory.
    pub users: Vec<JobId>,
    /// There is a lock and no account.
    pub lock_alone: bool,
}

/// GPUs with something stale.
///
/// # Errors
/// A fault when our own directory cannot be read; undetermined when a lock is not to be had.
pub fn stale(node: &mut impl Node) -> Result<Vec<Stale>, Failure> {
    let mut found = Vec::new();
    for gpu in node.gpus_with_files()? {
        let _held = node.lock_gpu(&gpu)?;
        let account = node.read_account(&gpu)?;
        let lock_alone = account.is_none();
        // Under the lock: whoever enters an account has made the job's directory before, and removes it after leaving.
        let mut users = account.map(|account| account.users).unwrap_or_default();
        users.retain(|job| !node.has_directory(job));
        if lock_alone || !users.is_empty() {
            found.push(Stale {
                gpu,
                users: users.into_iter().collect(),
                lock_alone,
            });
        }
    }
    Ok(found)
}

/// Removes it, and restores the mode found when no user is left. Returns lines for the log.
///
/// # Errors
/// As [`claim::leave`].
pub fn sweep(node: &mut impl Node, stale: &Stale) -> Result<Vec<String>, Failure> {
    let mut notes = Vec::new();
    for job in &stale.users {
        if !node.has_directory(job) {
            notes.extend(claim::leave(node, job, &stale.gpu)?);
        }
    }
    let _held = node.lock_gpu(&stale.gpu)?;
    if node.read_account(&stale.gpu)?.is_none() {
        node.write_account(&stale.gpu, None)?;
    }
    Ok(notes)
}
