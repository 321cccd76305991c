//! Removing a tree that a user owned and may still be changing.
//!
//! A directory found below the first level is moved up to it, so two descriptors serve for any
//! depth. No link is followed. Each directory is taken from its owner before it is listed. A mount
//! is not entered but detached.

use super::mounts::{mount_of, name_of};
use super::{Dir, FileError, HOLD};
use crate::deadline::Deadline;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, unlinkat};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Names read at a time, so that an endless directory does not fill our memory.
const BATCH: usize = 4096;
const BUSY: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub entries: u64,
    pub deadline: Deadline,
}

impl Dir {
    /// Removes the entry `name` with all below it, and detaches mounts. Stops at the first thing
    /// that it cannot remove, or at a bound. Returns the number of entries removed.
    pub fn remove_tree(&self, name: impl AsRef<OsStr>, bounds: Bounds) -> Result<u64, FileError> {
        let (name, _) = self.entry(&name)?;
        let mut removal = Removal {
            removed: 0,
            moved: 0,
            bounds,
        };
        let mount = mount_of(&self.as_fd())?;
        // Taken before the removal: if a process of its owner keeps its lock, this wait holds none.
        let top = still_there(removal.enter(self, name, mount))?;
        loop {
            if let Some(top) = &top {
                removal.empty(top, mount)?;
            }
            // Unless this is root, a process of its owner may have added something meanwhile.
            if removal.entry(self, name)? || top.is_none() {
                return Ok(removal.removed);
            }
        }
    }
}

struct Removal {
    removed: u64,
    moved: u64,
    bounds: Bounds,
}

impl Removal {
    /// Removes one entry without a stat(2), which could hang in a user's file system. False: a
    /// directory that is not empty.
    fn entry(&mut self, parent: &Dir, name: &OsStr) -> Result<bool, FileError> {
        loop {
            self.check(parent)?;
            let unlink = |what| unlinkat(parent.as_fd(), name, what);
            let outcome = match unlink(UnlinkatFlags::NoRemoveDir) {
                first @ Err(Errno::EISDIR | Errno::EPERM) => {
                    match unlink(UnlinkatFlags::RemoveDir) {
                        // Not a directory after all.
                        Err(Errno::ENOTDIR) => first,
                        second => second,
                    }
                }
                first => first,
            };
            match outcome {
                Ok(()) => {
                    self.removed += 1;
                    return Ok(true);
                }
                Err(Errno::ENOENT) => return Ok(true),
                Err(Errno::ENOTEMPTY | Errno::EEXIST) => return Ok(false),
                // Something is mounted on it.
                Err(Errno::EBUSY) => self.uncover(parent, name)?,
                Err(errno) => return Err(FileError::io("remove", parent.path().join(name))(errno)),
            }
        }
    }

    /// Opens a directory to be emptied, detaches what is mounted on it, and takes it from its
    /// owner: if we are root, no process can add anything from now on. `mount` is the tree's.
    fn enter(&mut self, parent: &Dir, name: &OsStr, mount: u64) -> Result<Dir, FileError> {
        loop {
            let path = parent.path().join(name);
            let fd = openat(parent.as_fd(), name, HOLD, Mode::empty());
            let fd = fd.map_err(FileError::io("open", &path))?;
            // Before any call that the file system itself must answer.
            if mount_of(&fd)? == mount {
                seize(&fd);
                return Ok(Dir::from_parts(fd, path));
            }
            drop(fd);
            self.uncover(parent, name)?;
        }
    }

    /// Detaches the uppermost mount on the entry `name`. The file system itself is not asked.
    fn uncover(&mut self, parent: &Dir, name: &OsStr) -> Result<(), FileError> {
        self.check(parent)?;
        self.moved += 1;
        let path = parent.path().join(name);
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let held = match openat(parent.as_fd(), name, flags, Mode::empty()) {
            Ok(held) => held,
            Err(Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(FileError::io("open", path)(errno)),
        };
        if mount_of(&held)? == mount_of(&parent.as_fd())? {
            // Busy for another reason, or unmounted meanwhile: the caller tries again.
            std::thread::sleep(BUSY);
            return Ok(());
        }
        match umount2(name_of(&held).as_str(), MntFlags::MNT_DETACH) {
            // EINVAL: already detached.
            Ok(()) | Err(Errno::EINVAL) => Ok(()),
            Err(errno) => Err(FileError::io("unmount", path)(errno)),
        }
    }

    fn empty(&mut self, top: &Dir, mount: u64) -> Result<(), FileError> {
        loop {
            let names = top.batch(BATCH)?;
            if names.is_empty() {
                return Ok(());
            }
            for name in &names {
                if self.entry(top, name)? {
                    continue;
                }
                let Some(below) = still_there(self.enter(top, name, mount))? else {
                    continue;
                };
                for inner in &below.batch(BATCH)? {
                    if !self.entry(&below, inner)? {
                        self.move_up(&below, inner, top)?;
                    }
                }
            }
        }
    }

    fn move_up(&mut self, from: &Dir, name: &OsStr, top: &Dir) -> Result<(), FileError> {
        loop {
            self.check(top)?;
            self.moved += 1;
            let new = format!(".mpsd-moved-{}", self.moved);
            match renameat(from.as_fd(), name, top.as_fd(), new.as_str()) {
                Ok(()) | Err(Errno::ENOENT) => return Ok(()),
                // The name is taken, and not by an empty directory.
                Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => {}
                Err(Errno::EBUSY | Errno::EXDEV) => self.uncover(from, name)?,
                Err(errno) => return Err(FileError::io("move", from.path().join(name))(errno)),
            }
        }
    }

    fn check(&self, at: &Dir) -> Result<(), FileError> {
        let what = match self.bounds {
            Bounds { entries, .. } if self.removed + self.moved > entries => {
                format!("holds more than {entries} entries")
            }
            Bounds { deadline, .. } if deadline.expired() => {
                "could not be removed in time".to_owned()
            }
            _ => return Ok(()),
        };
        let path = at.path().to_owned();
        Err(FileError::Bound { path, what })
    }
}

fn seize(fd: &OwnedFd) {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let Ok(listing) = openat(fd, ".", flags, Mode::empty()).or_else(|_| make_readable(fd, flags))
    else {
        return;
    };
    // If we are not root, it is emptied as it is, if it can be listed.
    let _ = fchown(&listing, Some(Uid::from_raw(0)), Some(Gid::from_raw(0)));
    let _ = fchmod(&listing, Mode::S_IRWXU);
}

/// Changes the mode of an owner's closed directory through `/proc`, which follows our descriptor.
fn make_readable(fd: &OwnedFd, flags: OFlag) -> Result<OwnedFd, Errno> {
    nix::sys::stat::fchmodat(
        nix::fcntl::AT_FDCWD,
        name_of(fd).as_str(),
        Mode::S_IRWXU,
        nix::sys::stat::FchmodatFlags::FollowSymlink,
    )?;
    openat(fd, ".", flags, Mode::empty())
}

fn still_there(entered: Result<Dir, FileError>) -> Result<Option<Dir>, FileError> {
    let gone = [Errno::ENOENT, Errno::ENOTDIR, Errno::ELOOP];
    match entered {
        Ok(dir) => Ok(Some(dir)),
        // Removed or replaced since it was listed; the next pass finds what is there now.
        Err(error) if error.errno().is_some_and(|errno| gone.contains(&errno)) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::place;
    use crate::testing::{STRANGER, alone, as_stranger, soon};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::Path;

    fn bounds() -> Bounds {
        Bounds {
            entries: 100_000,
            deadline: Deadline::after_ms(20_000),
        }
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
        // Twice is no error.
        assert_eq!(dir.remove_tree("job", bounds()).unwrap(), 0);
        symlink(&outside, &tree).unwrap();
        assert_eq!(dir.remove_tree("job", bounds()).unwrap(), 1);
        assert!(outside.join("precious").exists());
    }

    fn deep(at: &Path, depth: usize) {
        std::fs::create_dir(at).unwrap();
        let mut dir = Dir::open(at).unwrap();
        for _ in 0..depth {
            let made = dir.create_dir("d".repeat(200), 0o755, (STRANGER, STRANGER));
            dir = made.unwrap().0;
            dir.create_file("f", 0o400).unwrap();
        }
    }

    #[test]
    fn depth_is_no_bound_and_costs_no_descriptors() {
        let (place, dir) = place();
        deep(&place.path().join("job"), 3000);
        // The names that the removal would choose are taken, some by what cannot be replaced.
        std::fs::create_dir_all(place.path().join("job/.mpsd-moved-2/full")).unwrap();
        std::fs::write(place.path().join("job/.mpsd-moved-3"), b"").unwrap();
        let removed = dir.remove_tree("job", bounds()).unwrap();
        // If the first of those names is emptied before its number comes, a move replaces it.
        let all = 1 + 2 * 3000 + 3;
        assert!((all - 1..=all).contains(&removed), "{removed}");
        assert_eq!(dir.names(10).unwrap().len(), 0);
    }

    #[test]
    fn bounds_stop_it_and_it_may_be_called_again() {
        let (place, dir) = place();
        deep(&place.path().join("job"), 100);
        let (mut few, mut late) = (bounds(), bounds());
        few.entries = 50;
        late.deadline = Deadline::after_ms(0);
        for bounds in [few, late] {
            let outcome = dir.remove_tree("job", bounds);
            assert!(matches!(outcome, Err(FileError::Bound { .. })));
        }
        dir.remove_tree("job", bounds()).unwrap();
        assert!(!place.path().join("job").exists());
    }

    /// Mounts on a file, on directories at any depth, on a mount, on the tree.
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
        umount2(other.path(), MntFlags::MNT_DETACH).unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let own = place.path().display().to_string();
        assert!(!mounts.contains(&own), "{mounts}");
    }

    /// A user adds to the tree, and swaps directories for links, while root removes it.
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
            let mut spawn = as_stranger("/bin/sh", &["-c", &script]);
            spawn.session = true;
            let mut racer = spawn.start(soon()).unwrap();
            std::thread::sleep(Duration::from_millis(20 + 17 * round));
            let removed = dir.remove_tree("job", bounds());
            // With its own short-lived children.
            let group = nix::unistd::Pid::from_raw(racer.pid());
            let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
            racer.wait(soon()).unwrap();
            removed.unwrap();
            assert!(!tree.exists());
            assert!(outside.join("precious").exists());
        }
    }
}
