use super::*;

#[test]
fn a_full_disk_is_scarcity_and_a_broken_one_is_not() {
    assert!(is_scarcity(Errno::ENOSPC) && is_scarcity(Errno::ENFILE));
    for broken in [Errno::EIO, Errno::EROFS, Errno::EACCES, Errno::ENOENT] {
        assert!(!is_scarcity(broken), "{broken}");
    }
}
