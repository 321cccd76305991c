//! Locks with a deadline, of files held open: the kernel releases them however their holder ends.

use super::{Dir, FileError};
use crate::sys::deadline::Deadline;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What flock(2) is said to have failed to do, on a file system without locks for one.
pub const LOCK: &str = "lock";

/// An exclusive lock; dropped, it is free.
#[derive(Debug)]
pub struct FileLock {
    // None only while it is being dropped.
    lock: Option<Flock<OwnedFd>>,
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Asked for here, since nix's own destructor panics when unlocking fails; closing unlocks in any case.
        if let Some(Err((lock, _))) = self.lock.take().map(Flock::unlock) {
            std::mem::forget(lock);
        }
    }
}

impl Dir {
    /// Takes the exclusive lock of the file `name`, made with mode 0600 if absent. A holder may remove the file
    /// while it holds it: whoever waited then takes the next file of that name.
    ///
    /// # Errors
    /// A bound when another holds it until after the deadline, which is never a fault: the holder may be a user's doing.
    pub fn lock(&self, name: impl AsRef<OsStr>, deadline: Deadline) -> Result<FileLock, FileError> {
        let (c_name, path) = self.entry(name.as_ref())?;
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(0o600);
        loop {
            let file = openat(&self.fd, c_name.as_c_str(), flags, mode);
            let file = file.map_err(FileError::io("open", &path))?;
            let held = fstat(&file).map_err(FileError::io("look at", &path))?;
            if SFlag::from_bits_truncate(held.st_mode) & SFlag::S_IFMT != SFlag::S_IFREG {
                return Err(self.unfit(&c_name, path));
            }
            let locked = acquire(file, &path, deadline)?;
            let named = self.status_of(name.as_ref())?;
            if named.is_some_and(|s| (s.st_dev, s.st_ino) == (held.st_dev, held.st_ino)) {
                return Ok(locked);
            }
            if deadline.expired() {
                return Err(late(path));
            }
        }
    }
}

impl Dir {
    /// Whether somebody holds the lock of the file `name` now.
    pub fn is_locked(&self, name: impl AsRef<OsStr>) -> bool {
        let flags = OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let entry = self.entry(name.as_ref()).ok();
        let file = entry.and_then(|(name, _)| openat(&self.fd, name.as_c_str(), flags, Mode::empty()).ok());
        let tried = file.map(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock));
        matches!(tried, Some(Err((_, Errno::EWOULDBLOCK))))
    }
}

fn late(path: PathBuf) -> FileError {
    let what = "is still locked by another process".to_owned();
    FileError::Bound { path, what }
}

/// Takes the exclusive lock of an open file; `path` is for messages. Tries again after 1, 2, 4 … 20 ms: flock(2)
/// itself can only wait for ever.
fn acquire(file: OwnedFd, path: &Path, deadline: Deadline) -> Result<FileLock, FileError> {
    let mut file = file;
    let mut pause = Duration::from_millis(1);
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(FileLock { lock: Some(lock) }),
            Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) => file = back,
            Err((_, errno)) => return Err(FileError::io(LOCK, path)(errno)),
        }
        if !deadline.sleep(pause) {
            return Err(late(path.into()));
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests;
