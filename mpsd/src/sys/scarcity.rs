//! What runs out on a node that is not broken: any user can fill a file system, or the tables of the kernel.

use nix::errno::Errno;

/// Whether `errno` says that room, memory, processes or descriptors ran out. No evidence against the node.
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
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_scarcity_and_a_broken_one_is_not() {
        assert!(is_scarcity(Errno::ENOSPC) && is_scarcity(Errno::ENFILE));
        for broken in [Errno::EIO, Errno::EROFS, Errno::EACCES, Errno::ENOENT] {
            assert!(!is_scarcity(broken), "{broken}");
        }
    }
}
