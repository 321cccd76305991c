use super::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};

/// A user that owns nothing on any system.
const STRANGER: u32 = 54_321;

fn message(path: &Path) -> String {
    open_trusted(path).unwrap_err().to_string()
}

fn place() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn programs_of_the_system_are_trusted_through_their_links() {
    let shell = open_trusted(Path::new("/bin/sh")).unwrap();
    assert_eq!(shell.path, std::fs::canonicalize("/bin/sh").unwrap());
    let status = std::fs::metadata("/bin/sh").unwrap();
    assert_eq!((shell.device, shell.inode), (status.dev(), status.ino()));
}

#[test]
fn relative_and_looping_links_are_followed_to_their_end() {
    let place = place();
    let at = |name: &str| place.path().join(name);
    std::fs::create_dir(at("lib")).unwrap();
    std::fs::write(at("lib/lib.so.580"), b"elf").unwrap();
    symlink("../lib/./lib.so.580", at("lib/lib.so.1")).unwrap();
    let file = open_trusted(&at("lib/lib.so.1")).unwrap();
    assert_eq!(file.path, at("lib/lib.so.580"));
    assert_eq!(file.read(3).unwrap(), b"elf");
    assert!(matches!(
        open_trusted(&file.path).unwrap().read(2),
        Err(FileError::Bound { .. })
    ));
    symlink("b", at("a")).unwrap();
    symlink("a", at("b")).unwrap();
    assert!(message(&at("a")).ends_with("leads through too many symbolic links"));
    assert!(message(&at("lib")).ends_with("is a directory, not a regular file"));
    assert!(message(&at("lib/lib.so.580/x")).ends_with("lib.so.580' is a regular file, not a directory"));
    assert!(open_trusted(&at("none")).unwrap_err().is_absent());
    assert!(message(Path::new("bin/sh")).contains("not an absolute path"));
}

#[test]
fn what_others_could_have_put_there_is_refused() {
    let place = place();
    let at = |name: &str| place.path().join(name);
    let mode =
        |name: &str, mode| std::fs::set_permissions(at(name), PermissionsExt::from_mode(mode)).unwrap();
    std::fs::create_dir(at("dir")).unwrap();
    std::fs::write(at("dir/file"), b"").unwrap();
    assert!(open_trusted(&at("dir/file")).is_ok());
    for writable in [0o664, 0o646] {
        mode("dir/file", writable);
        assert!(message(&at("dir/file")).contains("may be written by group or others"));
    }
    mode("dir/file", 0o644);
    for writable in [0o775, 0o777] {
        mode("dir", writable);
        assert!(message(&at("dir/file")).contains("/dir' may be written by group or others"));
    }
    mode("dir", 0o1777);
    assert!(open_trusted(&at("dir/file")).is_ok(), "sticky, as /tmp");
    mode("dir", 0o755);
    chown(at("dir/file"), Some(STRANGER), None).unwrap();
    assert!(message(&at("dir/file")).ends_with("file' belongs to user 54321, not to root"));
    chown(at("dir/file"), Some(0), None).unwrap();
    chown(at("dir"), Some(STRANGER), None).unwrap();
    assert!(message(&at("dir/file")).ends_with("dir' belongs to user 54321, not to root"));
    chown(at("dir"), Some(0), None).unwrap();
    symlink("dir/file", at("link")).unwrap();
    assert!(open_trusted(&at("link")).is_ok());
    lchown(at("link"), Some(STRANGER), None).unwrap();
    assert!(message(&at("link")).ends_with("link' belongs to user 54321, not to root"));
    nix::unistd::mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
    assert!(message(&at("fifo")).ends_with("is a FIFO, not a regular file"));
}
