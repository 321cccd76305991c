use super::*;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

#[test]
fn what_is_not_so_in_text_mode_owner_or_kind_is_written_and_what_is_so_stays() {
    let directory = tempfile::tempdir().unwrap();
    let (file, other) = (directory.path().join("file"), directory.path().join("other"));
    let inode = || fs::symlink_metadata(&file).unwrap().ino();
    assert_eq!(ensure(&file, "text", 0o500), Ok(true));
    let before = inode();
    assert_eq!((ensure(&file, "text", 0o500), inode()), (Ok(false), before));
    let wrong: [&dyn Fn(); 4] = [
        &|| fs::write(&file, "else").unwrap(),
        &|| fs::set_permissions(&file, fs::Permissions::from_mode(0o555)).unwrap(),
        &|| chown(&file, Some(1), None).unwrap(),
        &|| {
            fs::rename(&file, &other).unwrap();
            symlink(&other, &file).unwrap();
        },
    ];
    for (index, change) in wrong.iter().enumerate() {
        change();
        assert_eq!(ensure(&file, "text", 0o500), Ok(true), "{index}");
        let now = fs::symlink_metadata(&file).unwrap();
        assert!(now.is_file() && now.uid() == 0, "{index}");
        assert_eq!(now.mode() & 0o7777, 0o500, "{index}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "text", "{index}");
    }
}
