//! The account of one GPU: which jobs use it, and the compute mode found before the first of them.

use super::node::{Node, Severity};
use mpsd_core::failure::{Evidence, Fault};
use mpsd_core::{ComputeMode, Failure, GpuUuid, JobId};
use std::collections::BTreeSet;

/// Version of the format.
pub const VERSION: u32 = 1;

/// `/run/mpsd/gpus/<uuid>`, root 0600, changed under its lock only.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Account {
    /// [`VERSION`].
    pub version: u32,
    /// The jobs that hold the GPU.
    pub users: BTreeSet<JobId>,
    /// The compute mode before the first of them.
    pub found: ComputeMode,
    /// The mode that we set, or were about to set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<ComputeMode>,
}

/// What leaving an account asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leave {
    /// The account as it stands afterwards; `None`: remove it.
    pub account: Option<Account>,
    /// The mode to restore now.
    pub restore: Option<ComputeMode>,
    /// A line for the log.
    pub note: Option<String>,
}

impl Account {
    /// `job` enters; `now` is the mode that the GPU has.
    pub fn join(existing: Option<Self>, job: &JobId, now: ComputeMode) -> Self {
        let mut account = existing.unwrap_or(Self {
            version: VERSION,
            users: BTreeSet::new(),
            found: now,
            set: None,
        });
        account.users.insert(job.clone());
        account
    }

    /// Whether `job` may set a mode: it is alone on the GPU, the mode found was DEFAULT and is still in force.
    pub fn may_set(&self, job: &JobId, now: ComputeMode) -> Result<(), String> {
        if self.users.iter().any(|user| user != job) {
            return Err("another job uses the GPU".into());
        }
        if self.found != ComputeMode::Default || (now != ComputeMode::Default && self.set != Some(now)) {
            return Err(format!("the mode found is {now}, not DEFAULT"));
        }
        Ok(())
    }

    /// `job` leaves; `now` is the mode that the GPU has. The last user restores what was found, unless somebody else
    /// changed it meanwhile.
    pub fn leave(mut self, job: &JobId, now: ComputeMode) -> Leave {
        self.users.remove(job);
        if !self.users.is_empty() {
            return Leave {
                account: Some(self),
                restore: None,
                note: None,
            };
        }
        let (restore, note) = match self.set {
            Some(set) if set == now && now != self.found => (Some(self.found), None),
            Some(set) if now != self.found => {
                let note = format!(
                    "compute mode is {now}, we set {set} over {}: left as somebody made it",
                    self.found
                );
                (None, Some(note))
            }
            _ => (None, None),
        };
        Leave {
            account: None,
            restore,
            note,
        }
    }
}

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
    let _held = node.lock_gpu(gpu)?;
    let Some(account) = node.read_account(gpu)? else {
        // Nobody's: what is left of it is the lock that we hold.
        return node.write_account(gpu, None).map(|()| None);
    };
    if !account.users.contains(job) {
        return Ok(None);
    }
    let now = node.compute_mode(gpu)?;
    let leave = account.leave(job, now);
    // The mode first: an account that is gone could not be asked again.
    if let Some(mode) = leave.restore {
        node.set_compute_mode(gpu, mode)?;
    }
    node.write_account(gpu, leave.account.as_ref())?;
    Ok(leave.note.map(|note| format!("{gpu}: {note}")))
}

#[cfg(test)]
mod tests;
