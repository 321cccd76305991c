//! The kernel as the programs use it: processes, files, privileges, cgroups, signals, time.
//!
//! `unsafe` stands only in `raw` and [`descriptors`]. The programs have one thread, which makes
//! forking safe. Every wait has a [`deadline::Deadline`]. What a user can change is reached by
//! descriptor, never twice by name.
#![allow(missing_docs)]

pub mod cgroup;
pub mod confine;
pub mod descriptors;
pub mod family;
pub mod files;
pub mod guard;
pub mod priority;
pub mod process;
mod raw;
pub mod signals;
pub mod spawn;

pub use mpsd_core::deadline;
pub use raw::Exit;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

use nix::errno::Errno;
use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// Whether something ran out. Any user can cause that, so it is no evidence against the node.
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
        for scarce in [Errno::ENOSPC, Errno::ENFILE, Errno::ENOLCK, Errno::E2BIG] {
            assert!(is_scarcity(scarce), "{scarce}");
        }
        for broken in [Errno::EIO, Errno::EROFS, Errno::EACCES, Errno::ENOENT] {
            assert!(!is_scarcity(broken), "{broken}");
        }
    }
}
