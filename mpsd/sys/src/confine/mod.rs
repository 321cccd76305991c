//! What a process gives up for good, so that an attacker who controls it gains nothing. A program
//! that root starts as the job's user is outside the job's limits.

mod filter;

use super::raw;
use filter::FilteredProgram;
use landlock::{
    ABI, Access as _, AccessFs, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError,
    RulesetStatus, path_beneath_rules,
};
use nix::errno::Errno;
use nix::libc::sock_filter;
use nix::sys::prctl;

/// What a program, and all that it starts, may not do: it gets no privilege from a set-user-id
/// file, makes no namespace, and debugs no process.
#[derive(Clone, Debug)]
pub struct Confinement {
    filter: Vec<sock_filter>,
}

impl Confinement {
    pub fn of_user() -> Self {
        Self {
            filter: filter::program(FilteredProgram::User),
        }
    }

    pub(super) fn enter(&self) -> Result<(), Errno> {
        prctl::set_no_new_privs()?;
        filter_calls(&self.filter)
    }
}

/// Installs a filter, unless the kernel was built without them: see [`lacking`].
fn filter_calls(filter: &[sock_filter]) -> Result<(), Errno> {
    match raw::has_call_filters() {
        true => raw::filter_calls(filter),
        false => Ok(()),
    }
}

/// Where the NVML worker may write: devices, and files that a library may leave behind.
const WORKERS_DIRECTORIES: [&str; 3] = ["/dev", "/tmp", "/var"];

/// Confines this process before it runs NVML, a vendor's library, as root: no program, no network,
/// no signal, few places to write. It is no error if the kernel lacks seccomp or Landlock: see
/// [`lacking`].
pub fn nvml_worker() -> Result<(), String> {
    landlocked().map_err(|e| format!("Landlock: {e}"))?;
    prctl::set_no_new_privs().map_err(|e| format!("no_new_privs: {e}"))?;
    let own = FilteredProgram::Worker(std::process::id());
    filter_calls(&filter::program(own)).map_err(|e| format!("seccomp: {e}"))
}

fn landlocked() -> Result<bool, RulesetError> {
    let newest = ABI::V6;
    let read = AccessFs::from_read(newest) & !AccessFs::Execute;
    let write = AccessFs::from_all(newest) & !AccessFs::Execute;
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(newest))?
        .create()?
        .add_rules(path_beneath_rules(["/"], read))?
        .add_rules(path_beneath_rules(WORKERS_DIRECTORIES, write))?
        .restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// Which of seccomp and Landlock (Linux 5.13) this kernel lacks; for the node's log.
pub fn lacking() -> Vec<&'static str> {
    let seccomp = (!raw::has_call_filters()).then_some("seccomp");
    let landlock = (!raw::has_landlock()).then_some("Landlock");
    seccomp.into_iter().chain(landlock).collect()
}

/// Protects this process from others of the same user: ptrace(2), `/proc/PID/mem`, a core dump.
pub fn undumpable() -> Result<(), Errno> {
    prctl::set_dumpable(false)
}

#[cfg(test)]
mod tests;
