use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn a_file_is_made_and_replaced_with_its_mode() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("slurm.conf");
    for (text, mode, until) in [("old", 0o600, Until::Placed), ("new", 0o644, Until::OnDisk)] {
        replace(&path, text.as_bytes(), mode, until).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        let found = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(found & 0o7777, mode);
    }
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
}

#[test]
fn neither_a_link_nor_a_leftover_is_written_through() {
    let place = tempfile::tempdir().unwrap();
    let (path, victim) = (place.path().join("record"), place.path().join("victim"));
    std::fs::write(&victim, "mine").unwrap();
    symlink(&victim, &path).unwrap();
    symlink(&victim, place.path().join(".record.new")).unwrap();
    replace(&path, b"ours", 0o644, Until::Placed).unwrap();
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "mine");
    assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
}

#[test]
fn a_failure_leaves_the_old_file_and_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("directory");
    std::fs::create_dir(&path).unwrap();
    let error = replace(&path, b"x", 0o644, Until::Placed).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EISDIR));
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    let nowhere = replace(&place.path().join("none/file"), b"x", 0o644, Until::Placed).unwrap_err();
    assert!(nowhere.is_absent(), "{nowhere}");
    assert!(replace(Path::new("/"), b"x", 0o644, Until::Placed).is_err());
}
