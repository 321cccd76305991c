//! The kernel as this suite uses it: processes, files, privileges, cgroups, signals, time. The only `unsafe` of
//! this crate lives in `raw` (and [`descriptors`]), behind functions safe to call. Our programs have one thread, which is what makes
//! forking safe (see [`guard`]).
//!
//! Every wait takes a [`deadline::Deadline`]; everything that a user can touch is reached by descriptor, never
//! twice by name.

pub(crate) mod cgroup;
pub mod confine;
pub mod descriptors;
pub(crate) mod family;
pub(crate) mod files;
pub mod guard;
mod mountinfo;
pub mod priority;
pub(crate) mod process;
mod raw;
pub mod signals;
pub(crate) mod spawn;

pub use mpsd_core::deadline;
pub use raw::Exit;

#[cfg(test)]
mod testing;

use nix::errno::Errno;

/// Whether `errno` says that room, memory, processes, descriptors, locks or the length of arguments ran out. Any user can fill a
/// file system or a table of the kernel, so it is no evidence against the node.
pub fn is_scarcity(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ENOSPC
            | Errno::EDQUOT
            | Errno::ENOMEM
            | Errno::ENOBUFS
            | Errno::EAGAIN
            | Errno::EMFILE
            | Errno::ENFILE
            | Errno::ENOLCK
            | Errno::E2BIG
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_scarcity_and_a_broken_one_is_not() {
        for scarce in [
            Errno::ENOSPC,
            Errno::ENFILE,
            Errno::ENOMEM,
            Errno::ENOLCK,
            Errno::E2BIG,
        ] {
            assert!(is_scarcity(scarce), "{scarce}");
        }
        for broken in [Errno::EIO, Errno::EROFS, Errno::EACCES, Errno::ENOENT] {
            assert!(!is_scarcity(broken), "{broken}");
        }
    }
}
