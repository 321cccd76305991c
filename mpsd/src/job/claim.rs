//! A job's claim on a GPU: its account and compute mode, changed together under one lock.

use super::account::Account;
use super::node::{Node, Severity};
use super::store::Store as _;
use mpsd_core::failure::{Evidence, Fault, Undetermined};
use mpsd_core::{ComputeMode, Failure, GpuUuid, JobId};
use mpsd_sys::deadline::Deadline;
use std::time::Duration;

const LOOKS: usize = 10;
const BETWEEN: Duration = Duration::from_millis(100);

/// The first job's entry keeps the compute mode found.
pub(super) fn enter(node: &mut impl Node, job: &JobId, gpu: &GpuUuid) -> Result<(), Failure> {
    let _held = node.lock_gpu(gpu)?;
    let existing = node.read_account(gpu)?;
    let now = node.compute_mode(gpu)?;
    if now == ComputeMode::ExclusiveProcess && existing.is_none() {
        expect_free(node, gpu)?;
    }
    node.write_account(gpu, Some(&Account::enter(existing, job, now)))
}

/// In exclusive mode no server can begin on a GPU that another process holds.
fn expect_free(node: &mut impl Node, gpu: &GpuUuid) -> Result<(), Failure> {
    let mut looks = 1;
    let holder = loop {
        match node.gpu_processes(gpu)?.first() {
            None => return Ok(()),
            Some(holder) if looks == LOOKS => break holder.pid,
            // One of an earlier job may be on its way out.
            Some(_) => node.wait_until(Deadline::after(BETWEEN)),
        }
        looks += 1;
    };
    let why = format!(
        "its compute mode is EXCLUSIVE_PROCESS, and {} holds it: end that, or set the mode to DEFAULT",
        node.describe(holder)
    );
    Err(Undetermined::new(gpu.to_string(), why).into())
}

/// Sets the mode if all that the plan supposed still holds. Otherwise the mode stays, with a line
/// in the log. The account is written first, so that it always names what may have been set.
pub(super) fn set_mode(
    node: &mut impl Node,
    job: &JobId,
    gpu: &GpuUuid,
    mode: ComputeMode,
) -> Result<(), Failure> {
    let _held = node.lock_gpu(gpu)?;
    let now = node.compute_mode(gpu)?;
    let Some(mut account) = node.read_account(gpu)? else {
        let why = "it vanished under its lock";
        return Err(Fault::new(Evidence::Storage, format!("account of {gpu}"), why).into());
    };
    let stays = match account.may_set(job, now) {
        Err(why) => Some(why),
        Ok(()) => {
            let processes = node.gpu_processes(gpu)?;
            let foreign = processes.first();
            foreign.map(|foreign| format!("process {} has a context on it", foreign.pid))
        }
    };
    if let Some(why) = stays {
        let line = format!("job {job}: compute mode of {gpu} stays {now}: {why}");
        node.log(Severity::Info, &line);
        return Ok(());
    }
    account.set = Some(mode);
    node.write_account(gpu, Some(&account))?;
    node.set_compute_mode(gpu, mode)
}

/// The last job on the GPU restores the mode found. Returns a line for the log.
pub(super) fn leave(
    node: &mut impl Node,
    job: &JobId,
    gpu: &GpuUuid,
) -> Result<Option<String>, Failure> {
    // No job has entered. A lock is not made here, because the file system may be full.
    if !node.gpus_with_files()?.contains(gpu) {
        return Ok(None);
    }
    let _held = node.lock_gpu(gpu)?;
    let Some(mut account) = node.read_account(gpu)? else {
        // All that is left is the lock that we hold.
        return node.write_account(gpu, None).map(|()| None);
    };
    if !account.users.contains(job) {
        return Ok(None);
    }
    let now = node.compute_mode(gpu)?;
    let restore = account.leave(job, now);
    // The mode first: it could not be restored without the account.
    match restore {
        Ok(Some(mode)) => node.set_compute_mode(gpu, mode)?,
        // A killed prologue's change may still wait in the driver's queue: this later one undoes
        // it.
        Ok(None) if account.set.is_some() && account.users.is_empty() => {
            let _ = node.set_compute_mode(gpu, now);
        }
        _ => {}
    }
    let left = Some(&account).filter(|account| !account.users.is_empty());
    node.write_account(gpu, left)?;
    Ok(restore.err().map(|note| format!("{gpu}: {note}")))
}

/// A GPU's account or lock, left behind by jobs without a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleClaims {
    pub gpu: GpuUuid,
    pub users: Vec<JobId>,
    pub lock_alone: bool,
}

/// It is a fault if one of our directories cannot be read.
pub fn stale(node: &mut impl Node) -> Result<Vec<StaleClaims>, Failure> {
    let mut found = Vec::new();
    for gpu in node.gpus_with_files()? {
        let _held = node.lock_gpu(&gpu)?;
        let account = node.read_account(&gpu)?;
        let lock_alone = account.is_none();
        // A job enters an account after its directory is made, and leaves it before its removal.
        let users = account.into_iter().flat_map(|account| account.users);
        let users: Vec<JobId> = users.filter(|job| !node.has_directory(job)).collect();
        if lock_alone || !users.is_empty() {
            found.push(StaleClaims {
                gpu,
                users,
                lock_alone,
            });
        }
    }
    Ok(found)
}

/// Restores the mode found when no job is left. Returns lines for the log.
pub fn remove_stale(node: &mut impl Node, stale: &StaleClaims) -> Result<Vec<String>, Failure> {
    let mut notes = Vec::new();
    for job in &stale.users {
        if !node.has_directory(job) {
            notes.extend(leave(node, job, &stale.gpu)?);
        }
    }
    let _held = node.lock_gpu(&stale.gpu)?;
    if node.read_account(&stale.gpu)?.is_none() {
        node.write_account(&stale.gpu, None)?;
    }
    Ok(notes)
}
