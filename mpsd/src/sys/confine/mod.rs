//! What a process gives up for good, so that nobody who gets hold of it gains anything.
//!
//! A program that root starts as the job's user is outside of the job's limits. Its user cannot debug it (it is in a group of
//! its own); whoever gets hold of it all the same finds no privilege to be had from a set-user-id file, no namespace, and
//! no debugging of others.

mod filter;

use super::raw;
use filter::For;
use landlock::{
    ABI, Access as _, AccessFs, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError,
    RulesetStatus, Scope, path_beneath_rules,
};
use nix::errno::Errno;
use nix::libc::sock_filter;
use nix::sys::prctl;

/// What a program of the job's user, and all that it starts, may do no more. With an identity to change to the bounding set
/// is emptied as well.
#[derive(Clone, Debug)]
pub struct Confinement {
    filter: Vec<sock_filter>,
}

impl Confinement {
    /// No new privileges, and the filter of system calls.
    pub fn of_user() -> Self {
        let filter = filter::program(For::User);
        Self { filter }
    }

    /// Confines this process; allocates nothing.
    pub(super) fn enter(&self) -> Result<(), Errno> {
        prctl::set_no_new_privs()?;
        // A kernel that was built without filters goes without: see [`lacking`].
        match raw::has_call_filters() {
            true => raw::filter_calls(&self.filter),
            false => Ok(()),
        }
    }
}

/// Below these directories the NVML worker may write: devices, and what a library may leave behind. Nothing of the system's
/// programs and settings, of units and sockets in `/run`, of the kernel's settings in `/proc`, and nobody's home.
const WORKERS_DIRECTORIES: [&str; 3] = ["/dev", "/tmp", "/var"];

/// Confines this process, which is to run NVML: a vendor's library as root. It executes nothing, has no network, signals
/// nobody, and writes in few places. What is executed for NVML elsewhere, `nvidia-modprobe`, has to be done before.
///
/// # Errors
/// One line; a kernel without one of the two means (seccomp, Landlock before Linux 5.13) is none, see [`lacking`].
pub fn nvml_worker() -> Result<(), String> {
    landlocked().map_err(|e| format!("Landlock: {e}"))?;
    prctl::set_no_new_privs().map_err(|e| format!("no_new_privs: {e}"))?;
    match raw::has_call_filters() {
        true => raw::filter_calls(&filter::program(For::Worker)).map_err(|e| format!("seccomp: {e}")),
        false => Ok(()),
    }
}

/// Restricts this process as far as the kernel can; false where it cannot.
fn landlocked() -> Result<bool, RulesetError> {
    let newest = ABI::V6;
    let read = AccessFs::from_read(newest) & !AccessFs::Execute;
    let write = AccessFs::from_all(newest) & !AccessFs::Execute;
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(newest))?
        .scope(Scope::Signal)?
        .create()?
        .add_rules(path_beneath_rules(["/"], read))?
        .add_rules(path_beneath_rules(WORKERS_DIRECTORIES, write))?
        .restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// What this kernel does not have of the means above; for the node's log.
pub fn lacking() -> Vec<&'static str> {
    let filters = (!raw::has_call_filters()).then_some("seccomp");
    filters
        .into_iter()
        .chain((!raw::has_landlock()).then_some("Landlock"))
        .collect()
}

/// Lets no process of the same user look into this one, or take it over: ptrace(2), `/proc/PID/mem`, a core dump.
///
/// # Errors
/// As prctl(2).
pub fn undumpable() -> Result<(), Errno> {
    prctl::set_dumpable(false)
}

#[cfg(test)]
mod tests;
