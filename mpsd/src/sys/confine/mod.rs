//! What a process gives up for good, so that nobody who gets hold of it gains anything.
//!
//! A program that root starts as the job's user may be taken over by that user (it is theirs: ptrace, the control daemon's
//! commands). It must then be no more than one of the job's own processes: no privilege to be had from a set-user-id file,
//! no namespace, no debugging of others, and the job's own limits.

mod filter;

use super::raw;
use filter::For;
use nix::errno::Errno;
use nix::libc::{rlimit64, sock_filter};
use nix::sys::prctl;

/// The resource limits of a process (getrlimit(2)), all of them.
#[derive(Clone, Debug)]
pub struct Limits([rlimit64; raw::LIMITS]);

impl Limits {
    /// Those that process `pid` has now; 0 is the caller.
    ///
    /// # Errors
    /// ESRCH when it is gone.
    pub fn of(pid: i32) -> Result<Self, Errno> {
        let mut all = [rlimit64 {
            rlim_cur: 0,
            rlim_max: 0,
        }; raw::LIMITS];
        for (number, limit) in all.iter_mut().enumerate() {
            *limit = raw::limit_of(pid, number)?;
        }
        Ok(Self(all))
    }
}

/// What a program of the job's user, and all that it starts, may do no more. With an identity to change to the bounding set
/// is emptied as well.
#[derive(Clone, Debug)]
pub struct Confinement {
    filter: Vec<sock_filter>,
    limits: Option<Limits>,
}

impl Confinement {
    /// No new privileges, the filter of system calls, and these limits.
    pub fn new(limits: Option<Limits>) -> Self {
        let filter = filter::program(For::User);
        Self { filter, limits }
    }

    /// Sets the limits of this process; before it changes its user, who may not raise one.
    pub(super) fn limits(&self) -> Result<(), Errno> {
        let limits = self.limits.iter().flat_map(|limits| limits.0.iter().enumerate());
        limits
            .into_iter()
            .try_for_each(|(number, limit)| raw::set_limit(number, limit))
    }

    /// Confines this process; allocates nothing.
    pub(super) fn enter(&self) -> Result<(), Errno> {
        prctl::set_no_new_privs()?;
        // A kernel that was built without filters refuses this by EINVAL or ENOSYS: see `has_filters`.
        match raw::has_call_filters() {
            true => raw::filter_calls(&self.filter),
            false => Ok(()),
        }
    }
}

/// Whether this kernel filters system calls; where it does not, the rest of a [`Confinement`] holds all the same.
pub fn has_filters() -> bool {
    raw::has_call_filters()
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
