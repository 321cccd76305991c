//! Removing a tree that a user owned and may still be changing.
//!
//! Depth costs nothing: a directory found below the first level is moved up to it, so that two descriptors do for
//! a tree of any depth. Nothing is ever looked up twice by name, no link is followed, and each directory is taken from its
//! owner before it is listed, so that nothing can be added to it behind our back. A file system that somebody mounted in the
//! tree is not entered but detached, and what lies below it is removed.

use super::room::{mount_of, name_of};
use super::{Dir, FileError, HOLD};
use crate::sys::deadline::Deadline;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, unlinkat};
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// Names read at a time: a directory that never ends does not fill our memory.
const BATCH: usize = 4096;
/// How long an entry that is busy and no mount is left alone before the next try.
const BUSY: Duration = Duration::from_millis(5);

/// How much may be removed.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Entries in all. What a user leaves in a job's directory is not ours to search for ever.
    pub entries: u64,
    /// End of the work.
    pub deadline: Deadline,
}

impl Dir {
    /// Removes the entry `name` and, if it is a directory, all below it; mounts on it and below it are detached. Stops at the
    /// first thing it cannot remove (a bound); what it has removed by then stays removed, and it may be called again. Returns the number of
    /// entries removed, the tree's own name included; 0 when there was none.
    pub fn remove_tree(&self, name: impl AsRef<OsStr>, bounds: Bounds) -> Result<u64, FileError> {
        let (name, path) = self.entry(name.as_ref())?;
        let mut removal = Removal {
            removed: 0,
            moved: 0,
            bounds,
        };
        let mount = mount_of(&self.as_fd())?;
        // Taken before it is removed: where a process of its owner's keeps its lock, that is waited for without a lock of ours.
        let Some(top) = still_there(removal.enter(self, &name, mount))? else {
            removal.entry(self, &name)?;
            return Ok(removal.removed);
        };
        // Whoever had it open may have added something between two passes, if he is its owner and we are not root.
        loop {
            removal.check(&top)?;
            removal.empty(&top, mount)?;
            match unlinkat(self.as_fd(), name.as_c_str(), UnlinkatFlags::RemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => break,
                Err(Errno::ENOTEMPTY | Errno::EEXIST) => {}
                Err(Errno::EBUSY) => removal.uncover(self, &name)?,
                Err(errno) => return Err(FileError::io("remove", path)(errno)),
            }
        }
        removal.removed += 1;
        Ok(removal.removed)
    }
}

struct Removal {
    removed: u64,
    moved: u64,
    bounds: Bounds,
}

impl Removal {
    /// Removes one entry without looking at it first: the kernel says what it is, and no file system is asked
    /// that could hang (a user may have mounted one over it). False: it is a directory that is not empty.
    fn entry(&mut self, parent: &Dir, name: &CStr) -> Result<bool, FileError> {
        loop {
            self.check(parent)?;
            let first = unlinkat(parent.as_fd(), name, UnlinkatFlags::NoRemoveDir);
            let outcome = match first {
                Err(Errno::EISDIR | Errno::EPERM) => {
                    match unlinkat(parent.as_fd(), name, UnlinkatFlags::RemoveDir) {
                        // Not a directory after all: the first answer is the one that counts.
                        Err(Errno::ENOTDIR) => first,
                        second => second,
                    }
                }
                other => other,
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
                Err(errno) => return Err(FileError::io("remove", path_of(parent, name))(errno)),
            }
        }
    }

    /// Opens a directory to be emptied, rid of what is mounted on it (`mount` is the mount of the tree), and takes it from
    /// its owner. As root this ends every race: whoever has it open can add nothing to a directory of root's with mode 0700.
    /// As its owner we only see to it that we may list it.
    fn enter(&mut self, parent: &Dir, name: &CStr, mount: u64) -> Result<Dir, FileError> {
        loop {
            let path = path_of(parent, name);
            let fd = openat(parent.as_fd(), name, HOLD, Mode::empty());
            let fd = fd.map_err(FileError::io("open", &path))?;
            // Before anything that would ask the file system itself.
            if mount_of(&fd)? == mount {
                seize(&fd);
                return Ok(Dir::from_parts(fd, path));
            }
            drop(fd);
            self.uncover(parent, name)?;
        }
    }

    /// Detaches the uppermost of what is mounted on the entry `name`. The mount is held by a descriptor before it is known to
    /// be one, and detached through it: by no name that somebody could change meanwhile. Nothing is asked of the file system.
    fn uncover(&mut self, parent: &Dir, name: &CStr) -> Result<(), FileError> {
        self.check(parent)?;
        self.moved += 1;
        let path = path_of(parent, name);
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let held = match openat(parent.as_fd(), name, flags, Mode::empty()) {
            Ok(held) => held,
            Err(Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(FileError::io("open", path)(errno)),
        };
        if mount_of(&held)? == mount_of(&parent.as_fd())? {
            // Busy for another reason, or unmounted meanwhile: the caller tries again, within its bounds.
            std::thread::sleep(BUSY);
            return Ok(());
        }
        match umount2(name_of(&held).as_str(), MntFlags::MNT_DETACH) {
            // EINVAL: detached meanwhile by somebody else.
            Ok(()) | Err(Errno::EINVAL) => Ok(()),
            Err(errno) => Err(FileError::io("unmount", path)(errno)),
        }
    }

    /// Empties `top`: each directory in it is emptied in turn, what is not empty below it moving up to `top`.
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

    /// Moves a directory that is not empty to `top`, under a name that is free there.
    fn move_up(&mut self, from: &Dir, name: &CStr, top: &Dir) -> Result<(), FileError> {
        loop {
            self.check(top)?;
            self.moved += 1;
            let new = CString::new(format!(".mpsd-moved-{}", self.moved)).unwrap_or_default();
            match renameat(from.as_fd(), name, top.as_fd(), new.as_c_str()) {
                Ok(()) | Err(Errno::ENOENT) => return Ok(()),
                // Somebody was there before us: an empty directory would have been replaced, anything else stays.
                Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => {}
                Err(Errno::EBUSY | Errno::EXDEV) => self.uncover(from, name)?,
                Err(errno) => return Err(FileError::io("move", path_of(from, name))(errno)),
            }
        }
    }

    fn check(&self, at: &Dir) -> Result<(), FileError> {
        let bound = |what| {
            Err(FileError::Bound {
                path: at.path().to_owned(),
                what,
            })
        };
        if self.removed + self.moved > self.bounds.entries {
            return bound(format!("holds more than {} entries", self.bounds.entries));
        }
        if self.bounds.deadline.expired() {
            return bound("could not be removed in time".to_owned());
        }
        Ok(())
    }
}

fn path_of(parent: &Dir, name: &CStr) -> PathBuf {
    parent.path().join(OsStr::from_bytes(name.to_bytes()))
}

fn seize(fd: &OwnedFd) {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let Ok(listing) = openat(fd, ".", flags, Mode::empty()).or_else(|_| make_readable(fd, flags)) else {
        return;
    };
    // What cannot be taken (we are not root) is emptied as it is; the listing tells if it may not.
    let _ = fchown(&listing, Some(Uid::from_raw(0)), Some(Gid::from_raw(0)));
    let _ = fchmod(&listing, Mode::S_IRWXU);
}

/// An owner's own directory without permissions: the mode is changed through `/proc`, which follows our
/// descriptor and no name.
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
    match entered {
        Ok(dir) => Ok(Some(dir)),
        // Removed or replaced since it was listed; the next pass sees what is there now.
        Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP)) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
