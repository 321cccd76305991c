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
