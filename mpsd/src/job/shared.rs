//! The MPS that jobs of one user share on a GPU. It has a job's life under an id of its own
//! ([`JobId::shared`]), with journal, record and lock. A list has the jobs that share it. The first
//! job begins it, and the last job to leave ends it (`undo.rs`).
//!
//! A job enters the list before it uses the MPS, and leaves it before the end of the MPS removes
//! anything. A program that finds an MPS without a list ends it. The list is changed only under the
//! lock of the MPS, which is taken after the job's own lock and before the lock of a GPU.

use super::findings::FailedStart;
use super::journal::Journal;
use super::node::{LockGuard, Member, Node, Role, Severity};
use super::store::Store as _;
use super::undo::undo;
use crate::plan::effects::Plan;
use mpsd_core::JobId;
use mpsd_core::failure::Undetermined;

/// Another job may end the MPS between two tries.
const TRIES: usize = 5;

/// Returns the journal of the shared MPS `id`. If it is not there, `begin` begins it under its
/// lock.
pub(super) fn join<N: Node>(
    node: &mut N,
    job: &JobId,
    id: &JobId,
    begin: impl Fn(&mut N, LockGuard) -> Result<Journal, FailedStart>,
) -> Result<Journal, FailedStart> {
    for _ in 0..TRIES {
        let held = node.open_job(id)?;
        let mut sharers = node.read_sharers(id)?;
        let journal = node.read_journal(id)?;
        let is_up = journal.as_ref().is_some_and(|journal| is_up(node, journal));
        if sharers.insert(job.clone()) {
            node.write_sharers(id, &sharers)?;
        }
        let Some(mut journal) = journal else {
            return begin(node, held);
        };
        if is_up {
            return Ok(journal);
        }
        sharers.remove(job);
        journal.sharers.extend(sharers);
        let line = format!("shared MPS {id}: it has ended: taken down, and begun again");
        node.log(Severity::Info, &line);
        let why = "what is left of it cannot be taken down";
        undo(node, &journal).allow_start(format!("shared MPS {id}"), why)?;
        // The teardown removed the directory, and the lock with it.
    }
    Err(Undetermined::new(format!("shared MPS {id}"), "it ends again and again").into())
}

/// Whether all that this plan shares is up. The server of a shared MPS keeps the driver loaded and
/// its GPU undivided, so what the ledger says of the GPU holds.
pub(super) fn are_up(node: &mut impl Node, plan: &Plan) -> bool {
    let mut is_up = |plan: &Plan| {
        let journal = node.read_journal(&plan.record.job).ok().flatten();
        journal.is_some_and(|journal| is_up(node, &journal))
    };
    !plan.shared_plans.is_empty() && plan.shared_plans.iter().all(&mut is_up)
}

/// Whether the control daemon that root has proved still runs, or one that took its place after a
/// job told it to quit. Without a list the end of the MPS has begun.
fn is_up(node: &mut impl Node, journal: &Journal) -> bool {
    if !node.is_there(&node.job_files(journal.job()).sharers()) {
        return false;
    }
    let serves = |m: &Member| m.role == Role::Control && !m.is_defunct() && m.state != 'T';
    // A start that was killed before its proof left a daemon that nobody has proved.
    let was_up = !journal.proved.is_empty();
    node.known_members(journal).iter().any(serves)
        || was_up && node.members(journal).iter().any(serves)
}
