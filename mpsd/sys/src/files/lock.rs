//! Locks of open files, with a deadline. The kernel releases one when its holder ends, in any way.

use super::{Dir, FILE, FileError};
use crate::deadline::Deadline;
use crate::raw::of_rustix;
use mpsd_core::file::file_type;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat};
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const LOCK: &str = "lock";
const TRY: FlockOperation = FlockOperation::NonBlockingLockExclusive;

/// Dropping it unlocks the file, also for the processes that have inherited it.
#[derive(Debug)]
pub struct FileLock(OwnedFd);

impl Drop for FileLock {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl Dir {
    /// Takes the exclusive lock of the file `name`, made with mode 0600 if absent. `Bound`: another
    /// process holds it past the deadline, and a user may be the cause.
    pub fn lock(&self, name: impl AsRef<OsStr>, deadline: Deadline) -> Result<FileLock, FileError> {
        let (name, path) = self.entry(&name)?;
        let flags = FILE | OFlag::O_RDWR | OFlag::O_CREAT;
        let mode = Mode::from_bits_truncate(0o600);
        loop {
            let file = openat(&self.fd, name, flags, mode);
            let file = file.map_err(FileError::io("open", &path))?;
            let held = fstat(&file).map_err(FileError::io("look at", &path))?;
            if file_type(&held) != SFlag::S_IFREG {
                return Err(self.unfit(name, path));
            }
            let locked = acquire(file, &path, deadline)?;
            let named = self.status_of(name)?;
            if named.is_some_and(|s| (s.st_dev, s.st_ino) == (held.st_dev, held.st_ino)) {
                return Ok(locked);
            }
            if deadline.expired() {
                return Err(late(path));
            }
        }
    }

    pub fn is_locked(&self, name: impl AsRef<OsStr>) -> bool {
        let open = |name| openat(&self.fd, name, FILE | OFlag::O_RDWR, Mode::empty()).ok();
        let file = self.entry(&name).ok().and_then(|(name, _)| open(name));
        file.is_some_and(|file| flock(&file, TRY) == Err(rustix::io::Errno::WOULDBLOCK))
    }
}

fn late(path: PathBuf) -> FileError {
    let what = "is still locked by another process".to_owned();
    FileError::Bound { path, what }
}

/// Tries again after 1, 2, 4 … 20 ms: flock(2) can only wait for ever.
fn acquire(file: OwnedFd, path: &Path, deadline: Deadline) -> Result<FileLock, FileError> {
    let mut pause = Duration::from_millis(1);
    loop {
        match flock(&file, TRY).map_err(of_rustix) {
            Ok(()) => return Ok(FileLock(file)),
            Err(Errno::EWOULDBLOCK | Errno::EINTR) => {}
            Err(errno) => return Err(FileError::io(LOCK, path)(errno)),
        }
        if !deadline.sleep(pause) {
            return Err(late(path.into()));
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use crate::deadline::Deadline;
    use crate::files::{Dir, FileError};
    use crate::testing::{alone, forked, soon, wait_until};
    use mpsd_core::file::Durability;
    use std::time::Duration;

    #[test]
    fn a_lock_is_waited_for_given_up_on_and_freed_by_its_holders_death() {
        let _alone = alone();
        let place = tempfile::tempdir().unwrap();
        let dir = Dir::open(place.path()).unwrap();
        let mut child = forked(|| {
            let held = dir.lock("gpu", Deadline::after_ms(1000));
            let _ = dir.write("held", b"", 0o600, Durability::Placed);
            while held.is_ok() {
                nix::unistd::pause();
            }
            1
        });
        wait_until(|| dir.status_of("held").unwrap().is_some());
        let began = std::time::Instant::now();
        let late = dir.lock("gpu", Deadline::after_ms(50));
        assert!(matches!(late, Err(FileError::Bound { .. })));
        assert!((50..2000).contains(&began.elapsed().as_millis()));
        child.kill(soon()).unwrap();
        let lock = dir.lock("gpu", soon()).unwrap();
        assert!(dir.lock("gpu", Deadline::after_ms(10)).is_err());
        drop(lock);
        assert!(dir.lock("gpu", Deadline::after_ms(10)).is_ok());
    }

    #[test]
    fn a_file_removed_by_its_holder_is_not_the_lock_any_more() {
        let _alone = alone();
        let place = tempfile::tempdir().unwrap();
        let dir = Dir::open(place.path()).unwrap();
        let first = dir.lock("gpu", Deadline::after_ms(100)).unwrap();
        let path = place.path().to_owned();
        let waiter = std::thread::spawn(move || {
            let dir = Dir::open(&path).unwrap();
            let lock = dir.lock("gpu", Deadline::after_ms(5000)).unwrap();
            let held = nix::sys::stat::fstat(&lock.0).unwrap().st_ino;
            assert_eq!(dir.status_of("gpu").unwrap().unwrap().st_ino, held);
        });
        std::thread::sleep(Duration::from_millis(60));
        dir.remove_file("gpu").unwrap();
        drop(first);
        waiter.join().unwrap();
    }

    #[test]
    fn a_link_or_fifo_is_no_lock() {
        let place = tempfile::tempdir().unwrap();
        let dir = Dir::open(place.path()).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", place.path().join("link")).unwrap();
        nix::unistd::mkfifo(&place.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for name in ["link", "fifo"] {
            let refused = dir.lock(name, Deadline::after_ms(50)).unwrap_err();
            let is_unfit = matches!(
                refused,
                FileError::Unfit { .. } | FileError::Io { act: "open", .. }
            );
            assert!(is_unfit, "{name}");
        }
    }
}
