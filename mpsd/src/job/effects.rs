//! The effects of a plan, one after another: the journal first, then the effect.

use super::claim;
use super::journal::Journal;
use super::node::{Node, Severity};
use super::spec::Spec;
use super::store::Store as _;
use crate::plan::effects::Effect;
use mpsd_core::failure::Undetermined;
use mpsd_core::{Failure, JobId};

/// Carries the plan of `journal` out; after the last effect `mpsd` is starting.
///
/// # Errors
/// The first failure. What was begun stands in the journal, for [`super::undo`].
pub fn carry_out(node: &mut impl Node, journal: &mut Journal, spec: &Spec) -> Result<(), Failure> {
    for number in 0..journal.plan.len() {
        journal.begun = number + 1;
        if let Err(failure) = node.write_journal(journal) {
            // An effect that is not written down does not happen, and is not to be undone.
            journal.begun = number;
            return Err(failure);
        }
        perform(node, journal, number, spec)?;
    }
    Ok(())
}

fn perform(node: &mut impl Node, journal: &mut Journal, number: usize, spec: &Spec) -> Result<(), Failure> {
    match journal.plan[number].clone() {
        Effect::ClaimGpu { gpu } => claim::enter(node, &journal.job, &gpu),
        Effect::SetComputeMode { gpu, mode } => claim::set_mode(node, &journal.job, &gpu, mode),
        Effect::MakeCgroup => {
            journal.cgroup = node.make_cgroup(journal)?;
            node.write_journal(journal)
        }
        Effect::MakeDirectories { daemon } => node.make_directories(journal, daemon),
        Effect::StartDaemon => {
            expect_its_job(node, &journal.job)?;
            journal.supervisor = Some(node.start_daemon(journal, spec)?);
            node.write_journal(journal)
        }
        Effect::TellExporter { exporter, directory } => {
            // No job fails for what others are told of it.
            if let Err(why) = node.enter_job(journal, exporter, &directory) {
                let line = format!("job {}: {exporter} is not told of it: {why}", journal.job);
                node.log(Severity::Warning, &line);
            }
            Ok(())
        }
    }
}

/// Gives a start up whose job has ended meanwhile: its epilogue waits for the lock that the start holds, or has given up on it.
///
/// # Errors
/// Undetermined.
pub fn expect_its_job(node: &impl Node, job: &JobId) -> Result<(), Undetermined> {
    match node.is_cancelled(job) {
        true => Err(Undetermined::new(
            format!("job {job}"),
            "it ended while its MPS was starting",
        )),
        false => Ok(()),
    }
}
