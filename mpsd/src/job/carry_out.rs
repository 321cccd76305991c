//! Carries a plan out: the journal first, then the effect, one after another; on failure, backwards.

use super::account::Account;
use super::journal::Journal;
use super::node::Node;
use super::spec::{ReadyDaemon, Spec};
use super::undo::{self, Findings};
use crate::plan::effects::Effect;
use mpsd_core::failure::{Evidence, Fault};
use mpsd_core::{ComputeMode, Failure, GpuUuid};

/// A plan that was carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    /// The daemons as `mpsd` reported them, root's checks passed.
    pub daemons: Vec<ReadyDaemon>,
}

/// Why a plan was not carried out, and what its rollback found.
#[derive(Debug)]
pub struct NotDone {
    /// The failure.
    pub failure: Failure,
    /// What the rollback found.
    pub findings: Findings,
}

/// Carries out everything up to and without the start of `mpsd`'s proof: after this the daemon is starting.
///
/// # Errors
/// The first failure, after everything that was begun was undone.
pub fn begin(node: &mut impl Node, journal: &mut Journal, spec: &Spec) -> Result<(), Box<NotDone>> {
    match begin_effects(node, journal, spec) {
        Ok(()) => Ok(()),
        Err(failure) => Err(roll_back(node, journal, failure)),
    }
}

/// Waits for the proof that every daemon is ready.
///
/// # Errors
/// As [`begin`]. Starts of two users that failed within the window are evidence against the node, where no user can have
/// been the cause.
pub fn prove(node: &mut impl Node, journal: &Journal, spec: &Spec) -> Result<Ready, Box<NotDone>> {
    match node.await_ready(journal, spec) {
        Ok(daemons) => {
            node.note_good_start();
            Ok(Ready { daemons })
        }
        Err(failure) => {
            let failure = weigh(node, journal, failure);
            Err(roll_back(node, journal, failure))
        }
    }
}

fn weigh(node: &mut impl Node, journal: &Journal, failure: Failure) -> Failure {
    match failure {
        Failure::Undetermined(u) if node.note_failed_start(journal) => Fault::new(
            Evidence::RepeatedStarts,
            // First: a scheduler cuts the reason of a drain.
            "starts of several users failed",
            format!("{}: {}", u.what, u.why),
        )
        .into(),
        other => other,
    }
}

fn roll_back(node: &mut impl Node, journal: &Journal, failure: Failure) -> Box<NotDone> {
    let findings = undo::undo(node, journal);
    Box::new(NotDone { failure, findings })
}

fn begin_effects(node: &mut impl Node, journal: &mut Journal, spec: &Spec) -> Result<(), Failure> {
    for number in 0..journal.plan.len() {
        journal.begun = number + 1;
        node.write_journal(journal)?;
        perform(node, journal, number, spec)?;
    }
    Ok(())
}

fn perform(node: &mut impl Node, journal: &mut Journal, number: usize, spec: &Spec) -> Result<(), Failure> {
    match journal.plan[number].clone() {
        Effect::ClaimGpu { gpu } => claim(node, journal, &gpu),
        Effect::SetComputeMode { gpu, mode } => set_mode(node, journal, &gpu, mode),
        Effect::MakeCgroup => {
            journal.cgroup = node.make_cgroup(journal)?;
            node.write_journal(journal)
        }
        Effect::MakeDirectories { daemon } => node.make_directories(journal, daemon),
        Effect::StartDaemon => {
            journal.supervisor = Some(node.start_daemon(journal, spec)?);
            node.write_journal(journal)
        }
    }
}

fn claim(node: &mut impl Node, journal: &Journal, gpu: &GpuUuid) -> Result<(), Failure> {
    let _held = node.lock_gpu(gpu)?;
    let existing = node.read_account(gpu)?;
    let now = node.compute_mode(gpu)?;
    let account = Account::join(existing, &journal.job, now);
    node.write_account(gpu, Some(&account))
}

/// Sets the mode under the account's lock, if all that the plan supposed still holds; otherwise it stays, with a line
/// in the log. The account is written first: whoever finds it knows what may have been set.
fn set_mode(
    node: &mut impl Node,
    journal: &Journal,
    gpu: &GpuUuid,
    mode: ComputeMode,
) -> Result<(), Failure> {
    let _held = node.lock_gpu(gpu)?;
    let now = node.compute_mode(gpu)?;
    let Some(mut account) = node.read_account(gpu)? else {
        return Err(Fault::new(
            Evidence::Storage,
            format!("account of {gpu}"),
            "it vanished under its lock",
        )
        .into());
    };
    if let Err(why) = account.may_set(&journal.job, now) {
        node.log(&format!(
            "job {}: compute mode of {gpu} stays {now}: {why}",
            journal.job
        ));
        return Ok(());
    }
    if let Some(foreign) = node.gpu_processes(gpu)?.first() {
        node.log(&format!(
            "job {}: compute mode of {gpu} stays {now}: process {} has a context on it",
            journal.job, foreign.pid
        ));
        return Ok(());
    }
    account.set = Some(mode);
    node.write_account(gpu, Some(&account))?;
    node.set_compute_mode(gpu, mode)
}
