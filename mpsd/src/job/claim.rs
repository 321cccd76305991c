//! A job's claim on a GPU: the account and the compute mode, changed together under one lock.

use super::account::Account;
use super::node::{Node, Severity};
use super::store::Store as _;
use mpsd_core::failure::{Evidence, Fault};
use mpsd_core::{ComputeMode, Failure, GpuUuid, JobId};

/// Enters `job` into the account of `gpu`, with the mode found if it is the first.
///
/// # Errors
/// As the effects: the lock, NVML, the account's file.
pub fn enter(node: &mut impl Node, job: &JobId, gpu: &GpuUuid) -> Result<(), Failure> {
    let _held = node.lock_gpu(gpu)?;
    let existing = node.read_account(gpu)?;
    let now = node.compute_mode(gpu)?;
    node.write_account(gpu, Some(&Account::join(existing, job, now)))
}

/// Sets the mode under the account's lock, if all that the plan supposed still holds; otherwise it stays, with a line
/// in the log. The account is written first: whoever finds it knows what may have been set.
///
/// # Errors
/// As [`enter`].
pub fn set_mode(node: &mut impl Node, job: &JobId, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), Failure> {
    let _held = node.lock_gpu(gpu)?;
    let now = node.compute_mode(gpu)?;
    let Some(mut account) = node.read_account(gpu)? else {
        let why = "it vanished under its lock";
        return Err(Fault::new(Evidence::Storage, format!("account of {gpu}"), why).into());
    };
    let stays = match account.may_set(job, now) {
        Err(why) => Some(why),
        Ok(()) => node
            .gpu_processes(gpu)?
            .first()
            .map(|foreign| format!("process {} has a context on it", foreign.pid)),
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

/// Takes `job` out of the account of `gpu`; the last user restores the mode found. Returns lines for the log.
///
/// # Errors
/// As [`enter`].
pub fn leave(node: &mut impl Node, job: &JobId, gpu: &GpuUuid) -> Result<Option<String>, Failure> {
    // Without account and lock nobody has entered, and there may be no room for a lock.
    if !node.gpus_with_files()?.contains(gpu) {
        return Ok(None);
    }
    let _held = node.lock_gpu(gpu)?;
    let Some(mut account) = node.read_account(gpu)? else {
        // Nobody's: what is left of it is the lock that we hold.
        return node.write_account(gpu, None).map(|()| None);
    };
    if !account.users.contains(job) {
        return Ok(None);
    }
    let now = node.compute_mode(gpu)?;
    let restore = account.leave(job, now);
    // The mode first: an account that is gone could not be asked again.
    if let Ok(Some(mode)) = restore {
        node.set_compute_mode(gpu, mode)?;
    }
    node.write_account(gpu, Some(&account).filter(|account| !account.users.is_empty()))?;
    Ok(restore.err().map(|note| format!("{gpu}: {note}")))
}
