use super::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};

/// A user that owns nothing on any system.
const STRANGER: u32 = 54_321;

fn message(path: &Path) -> String {
    open_trusted(path).unwrap_err().to_string()
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
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    std::fs::create_dir(at("lib")).unwrap();
    std::fs::write(at("lib/lib.so.580"), b"elf").unwrap();
    symlink("../lib/./lib.so.580", at("lib/lib.so.1")).unwrap();
    let file = open_trusted(&at("lib/lib.so.1")).unwrap();
    assert_eq!(file.path, at("lib/lib.so.580"));
    assert_eq!(file.read(3).unwrap(), b"elf");
    let file = open_trusted(&file.path).unwrap();
    let short = file.read(2);
    assert!(matches!(short, Err(FileError::Bound { .. })));
    symlink("b", at("a")).unwrap();
    symlink("a", at("b")).unwrap();
    assert!(message(&at("a")).ends_with("leads through too many symbolic links"));
    assert!(message(&at("lib")).ends_with("is a directory, not a regular file"));
    let no_directory = message(&at("lib/lib.so.580/x"));
    assert!(no_directory.ends_with("lib.so.580' is a regular file, not a directory"));
    assert!(open_trusted(&at("none")).unwrap_err().is_absent());
    assert!(message(Path::new("bin/sh")).contains("not an absolute path"));
}

#[test]
fn what_others_could_have_put_there_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let file = at("dir/file");
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap()
    };
    std::fs::create_dir(at("dir")).unwrap();
    std::fs::write(&file, b"").unwrap();
    symlink("dir/file", at("link")).unwrap();
    for good in [&file, &at("link")] {
        assert!(open_trusted(good).is_ok());
    }
    for (changed, good, writable) in [
        (&file, 0o644, [0o664, 0o646]),
        (&at("dir"), 0o755, [0o775, 0o777]),
    ] {
        for bad in writable {
            mode(changed, bad);
            let why = format!("'{}' may be written by group or others", changed.display());
            assert!(message(&file).contains(&why));
        }
        mode(changed, good);
    }
    mode(&at("dir"), 0o1777);
    assert!(open_trusted(&file).is_ok(), "sticky, as /tmp");
    mode(&at("dir"), 0o755);
    for changed in ["dir/file", "dir", "link"] {
        lchown(at(changed), Some(STRANGER), None).unwrap();
        let refused = message(&at("link"));
        let why = format!("{changed}' belongs to user 54321, not to root: chown root");
        assert!(refused.ends_with(&why), "{refused}");
        lchown(at(changed), Some(0), None).unwrap();
    }
    nix::unistd::mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
    assert!(message(&at("fifo")).ends_with("is a FIFO, not a regular file"));
}
