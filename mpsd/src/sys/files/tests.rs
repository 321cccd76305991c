use super::*;
use crate::sys::testing::STRANGER;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

fn place() -> (tempfile::TempDir, Dir) {
    let place = tempfile::tempdir().unwrap();
    let dir = Dir::open(place.path()).unwrap();
    (place, dir)
}

fn message<T: std::fmt::Debug>(result: Result<T, FileError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_link_on_the_way_is_refused() {
    let (place, dir) = place();
    std::fs::create_dir(place.path().join("real")).unwrap();
    symlink("real", place.path().join("link")).unwrap();
    assert!(dir.open_dir("real").is_ok());
    assert!(message(dir.open_dir("link")).ends_with("link' is a symbolic link"));
    assert!(message(Dir::open(&place.path().join("link/below"))).ends_with("link' is a symbolic link"));
    assert!(message(Dir::open(Path::new("run"))).contains("not an absolute path"));
    assert!(message(Dir::open(Path::new("/run/../etc"))).contains("'..'"));
    for name in ["", ".", "..", "a/b", "a\0b"] {
        assert!(
            matches!(dir.open_dir(name), Err(FileError::Unfit { .. })),
            "{name:?}"
        );
    }
}

#[test]
fn a_directory_is_made_once_with_its_owner_and_mode() {
    let (place, dir) = place();
    let owner = (STRANGER, STRANGER + 1);
    let (_, made) = dir.create_dir("pipe", 0o700, owner).unwrap();
    assert!(made);
    let status = std::fs::metadata(place.path().join("pipe")).unwrap();
    assert_eq!(
        (status.uid(), status.gid(), status.mode() & 0o7777),
        (owner.0, owner.1, 0o700)
    );
    // The owner opens it to all: closed again, not refused.
    std::fs::set_permissions(place.path().join("pipe"), PermissionsExt::from_mode(0o777)).unwrap();
    assert!(!dir.create_dir("pipe", 0o700, owner).unwrap().1);
    assert_eq!(
        std::fs::metadata(place.path().join("pipe")).unwrap().mode() & 0o7777,
        0o700
    );
    let other = message(dir.create_dir("pipe", 0o700, (STRANGER + 7, 0)));
    assert!(other.contains("belongs to user 54321, not to 54328"), "{other}");
    assert_eq!(
        std::fs::metadata(place.path().join("pipe")).unwrap().uid(),
        STRANGER,
        "not given away"
    );
    // What is not a directory is left alone.
    std::fs::write(place.path().join("file"), b"x").unwrap();
    symlink("pipe", place.path().join("link")).unwrap();
    assert!(message(dir.create_dir("file", 0o700, owner)).ends_with("file' is a regular file"));
    assert!(message(dir.create_dir("link", 0o700, owner)).ends_with("link' is a symbolic link"));
    // Root's own, whatever the umask.
    dir.create_dir("jobs", 0o711, (0, 0)).unwrap();
    assert_eq!(
        std::fs::metadata(place.path().join("jobs")).unwrap().mode() & 0o7777,
        0o711
    );
}

#[test]
fn a_write_is_whole_or_not_at_all() {
    let (place, dir) = place();
    dir.write_atomic("journal", b"one", 0o600).unwrap();
    // A crash left its half-made file; a user left a link and a file of the same hidden name.
    std::fs::write(place.path().join(".journal.new"), b"half").unwrap();
    dir.write_atomic("journal", b"two", 0o644).unwrap();
    assert_eq!(dir.read_limited("journal", 3).unwrap().unwrap(), b"two");
    assert_eq!(
        std::fs::metadata(place.path().join("journal")).unwrap().mode() & 0o7777,
        0o644
    );
    let victim = place.path().join("victim");
    std::fs::write(&victim, b"untouched").unwrap();
    symlink(&victim, place.path().join(".journal.new")).unwrap();
    dir.write_atomic("journal", b"three", 0o600).unwrap();
    std::fs::hard_link(&victim, place.path().join(".journal.new")).unwrap();
    dir.write_atomic("journal", b"four", 0o600).unwrap();
    assert_eq!(std::fs::read(&victim).unwrap(), b"untouched");
    let mut names = dir.names(10).unwrap();
    names.sort();
    assert_eq!(names, ["journal", "victim"]);
    assert!(matches!(dir.names(1), Err(FileError::Bound { .. })));
}

#[test]
fn a_failed_write_leaves_the_old_file_and_no_other() {
    let (place, dir) = place();
    std::fs::create_dir(place.path().join("goal")).unwrap();
    assert_eq!(
        dir.write_atomic("goal", b"x", 0o600).unwrap_err().errno(),
        Some(Errno::EISDIR)
    );
    assert_eq!(dir.names(10).unwrap(), ["goal"]);
}

#[test]
fn only_small_regular_files_are_read_and_nothing_blocks() {
    let (place, dir) = place();
    assert_eq!(dir.read_limited("absent", 9).unwrap(), None);
    std::fs::write(place.path().join("file"), b"12345").unwrap();
    assert_eq!(dir.read_limited("file", 5).unwrap().unwrap(), b"12345");
    assert!(message(dir.read_limited("file", 4)).ends_with("has more than 4 bytes"));
    nix::unistd::mkfifo(&place.path().join("fifo"), Mode::S_IRWXU).unwrap();
    assert!(message(dir.read_limited("fifo", 9)).ends_with("fifo' is a FIFO, not a regular file"));
    symlink("file", place.path().join("link")).unwrap();
    assert!(message(dir.read_limited("link", 9)).ends_with("link' is a symbolic link"));
    let _socket = std::os::unix::net::UnixListener::bind(place.path().join("socket")).unwrap();
    assert!(message(dir.read_limited("socket", 9)).ends_with("socket' is a socket"));
    assert!(message(Dir::open(Path::new("/dev")).unwrap().read_limited("zero", 9)).contains("is a device"));
}

#[test]
fn removing_twice_is_no_error() {
    let (place, dir) = place();
    std::fs::write(place.path().join("file"), b"").unwrap();
    std::fs::create_dir_all(place.path().join("full/below")).unwrap();
    assert!(dir.remove_file("file").unwrap());
    assert!(!dir.remove_file("file").unwrap());
    assert_eq!(
        dir.remove_empty_dir("full").unwrap_err().errno(),
        Some(Errno::ENOTEMPTY)
    );
    assert!(dir.open_dir("full").unwrap().remove_empty_dir("below").unwrap());
    assert!(dir.remove_empty_dir("full").unwrap());
    assert!(!dir.remove_empty_dir("full").unwrap());
}
