use super::*;
use crate::sys::testing::{STRANGER, alone, soon};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

fn bounds() -> Bounds {
    Bounds {
        entries: 100_000,
        deadline: Deadline::after_ms(20_000),
    }
}

fn place() -> (tempfile::TempDir, Dir) {
    let place = tempfile::tempdir().unwrap();
    let dir = Dir::open(place.path()).unwrap();
    (place, dir)
}

#[test]
fn links_are_removed_and_not_followed() {
    let (place, dir) = place();
    let tree = place.path().join("job");
    let outside = place.path().join("outside");
    std::fs::create_dir_all(tree.join("a/b")).unwrap();
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("precious"), b"x").unwrap();
    symlink(&outside, tree.join("link")).unwrap();
    symlink("/", tree.join("a/b/root")).unwrap();
    symlink("dangling", tree.join("a/dangling")).unwrap();
    std::fs::hard_link(outside.join("precious"), tree.join("a/hard")).unwrap();
    nix::unistd::mkfifo(&tree.join("log"), Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(tree.join("control")).unwrap();
    std::fs::set_permissions(tree.join("a"), PermissionsExt::from_mode(0o0)).unwrap();
    assert!(dir.remove_tree("job", bounds()).unwrap() >= 9);
    assert!(!tree.exists());
    assert_eq!(std::fs::read(outside.join("precious")).unwrap(), b"x");
    assert_eq!(dir.remove_tree("job", bounds()).unwrap(), 0, "twice is no error");
    symlink(&outside, &tree).unwrap();
    assert_eq!(dir.remove_tree("job", bounds()).unwrap(), 1);
    assert!(outside.join("precious").exists());
}

/// Makes a chain of `depth` directories, far deeper than any path may be long or descriptors many.
fn deep(at: &Path, depth: usize) {
    std::fs::create_dir(at).unwrap();
    let mut dir = Dir::open(at).unwrap();
    for _ in 0..depth {
        dir = dir
            .create_dir("d".repeat(200), 0o755, (STRANGER, STRANGER))
            .unwrap()
            .0;
        openat(dir.as_fd(), "f", OFlag::O_CREAT | OFlag::O_WRONLY, Mode::S_IRUSR).unwrap();
    }
}

#[test]
fn depth_is_no_bound_and_costs_no_descriptors() {
    let (place, dir) = place();
    deep(&place.path().join("job"), 3000);
    // Names that the removal itself would choose are taken, some by what cannot be replaced.
    std::fs::create_dir_all(place.path().join("job/.mpsd-moved-2/full")).unwrap();
    std::fs::write(place.path().join("job/.mpsd-moved-3"), b"").unwrap();
    let removed = dir.remove_tree("job", bounds()).unwrap();
    assert_eq!(removed, 1 + 2 * 3000 + 3);
    assert_eq!(dir.names(10).unwrap().len(), 0);
}

#[test]
fn bounds_stop_it_and_it_may_be_called_again() {
    let (place, dir) = place();
    deep(&place.path().join("job"), 100);
    let few = Bounds {
        entries: 50,
        ..bounds()
    };
    assert!(matches!(
        dir.remove_tree("job", few),
        Err(FileError::Bound { .. })
    ));
    let late = Bounds {
        deadline: Deadline::after_ms(0),
        ..bounds()
    };
    assert!(matches!(
        dir.remove_tree("job", late),
        Err(FileError::Bound { .. })
    ));
    dir.remove_tree("job", bounds()).unwrap();
    assert!(!place.path().join("job").exists());
}

/// Mounts as an administrator or a user's fusermount puts them there: on a file, on directories at any depth, one upon
/// another, on the tree itself.
#[test]
fn a_mount_is_detached_and_not_entered() {
    use nix::mount::{MsFlags, mount};
    let _alone = alone();
    let (place, dir) = place();
    let (outside, tree) = (place.path().join("outside"), place.path().join("job"));
    std::fs::create_dir_all(tree.join("a/b/point")).unwrap();
    std::fs::create_dir_all(outside.join("below")).unwrap();
    std::fs::write(outside.join("precious"), b"").unwrap();
    std::fs::write(tree.join("a/b/file"), b"").unwrap();
    // Bind mounts: the same device number on both sides.
    let bind = |from: &Path, to: &Path| {
        mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    };
    bind(&outside, &tree.join("a/b/point"));
    bind(&outside, &tree.join("a/b/point"));
    bind(&outside, &tree.join("a/b/point/below"));
    bind(&outside.join("precious"), &tree.join("a/b/file"));
    bind(&tree, &tree);
    let other = tempfile::tempdir().unwrap();
    bind(&outside, other.path());
    assert!(dir.remove_tree("job", bounds()).unwrap() >= 5);
    assert!(!tree.exists());
    assert!(outside.join("precious").exists() && outside.join("below").exists());
    // A mount elsewhere of the same directory stays.
    assert!(other.path().join("precious").exists());
    nix::mount::umount2(other.path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&place.path().display().to_string()), "{mounts}");
}

/// A user who adds to his tree, and swaps directories for links, as fast as he can while root removes it.
#[test]
fn a_hostile_owner_does_not_win_the_race() {
    let _alone = alone();
    let (place, dir) = place();
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o711)).unwrap();
    let outside = place.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("precious"), b"").unwrap();
    for round in 0..5 {
        let tree = place.path().join("job");
        std::fs::create_dir_all(tree.join("sub/sub")).unwrap();
        for path in [tree.clone(), tree.join("sub"), tree.join("sub/sub")] {
            chown(&path, Some(STRANGER), Some(STRANGER)).unwrap();
        }
        let script = format!(
            "cd {0}; while :; do mkdir -p sub/sub/x y/z; >y/f; mv y/z y/w; rm -rf sub; ln -s {1} sub; rm -f sub; mkdir sub; done 2>/dev/null",
            tree.display(),
            outside.display()
        );
        let mut spawn = crate::sys::spawn::Spawn::new("/bin/sh");
        spawn.args = vec!["-c".into(), script.into()];
        spawn.env = vec![("PATH".into(), "/usr/bin:/bin".into())];
        spawn.session = true;
        spawn.identity = Some(crate::sys::spawn::Identity {
            uid: STRANGER,
            gid: STRANGER,
            groups: vec![],
        });
        let mut racer = spawn.start(soon()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20 + 17 * round));
        let removed = dir.remove_tree("job", bounds());
        // Its own short-lived children go with the session's leader's group.
        let _ = nix::sys::signal::killpg(
            nix::unistd::Pid::from_raw(racer.pid()),
            nix::sys::signal::Signal::SIGKILL,
        );
        racer.wait(Deadline::after_ms(5000)).unwrap();
        removed.unwrap();
        assert!(!tree.exists());
        assert!(outside.join("precious").exists());
    }
}
