//! Waiting for something to happen in a directory.

use super::deadline::Deadline;
use super::process::poll_readable;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// A watch on one directory: entries made, moved, written or removed there. Events are a reason to look, never proof:
/// look once after the watch is set, before the first wait.
#[derive(Debug)]
pub struct Watch(Inotify);

impl Watch {
    /// Watches a directory; a symbolic link is refused.
    ///
    /// # Errors
    /// The kernel's; EMFILE and ENOSPC when the user has too many watches.
    pub fn new(directory: &Path) -> Result<Self, Errno> {
        let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let events = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ATTRIB;
        watch.add_watch(
            directory,
            events | AddWatchFlags::IN_ONLYDIR | AddWatchFlags::IN_DONT_FOLLOW,
        )?;
        Ok(Self(watch))
    }

    /// To poll: readable when something has happened.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The entries to which something has happened since, without waiting; None in the list for the directory itself.
    ///
    /// # Errors
    /// The kernel's.
    pub fn events(&self) -> Result<Vec<Option<OsString>>, Errno> {
        match self.0.read_events() {
            Ok(events) => Ok(events.into_iter().map(|event| event.name).collect()),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(Vec::new()),
            Err(errno) => Err(errno),
        }
    }

    /// Waits for events; none in the list at the deadline.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(&self, deadline: Deadline) -> Result<Vec<Option<OsString>>, Errno> {
        if poll_readable(self.as_fd(), deadline)? {
            self.events()
        } else {
            Ok(Vec::new())
        }
    }

    /// Waits until `look` finds what it looks for, looking at once and after each event; None at the deadline.
    ///
    /// # Errors
    /// The kernel's.
    pub fn until<T>(
        &self,
        deadline: Deadline,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, Errno> {
        loop {
            if let Some(found) = look() {
                return Ok(Some(found));
            }
            if deadline.expired() {
                return Ok(None);
            }
            self.wait(deadline)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::testing::alone;

    #[test]
    fn a_file_renamed_into_place_is_seen_at_once() {
        let _alone = alone();
        let place = tempfile::tempdir().unwrap();
        let watch = Watch::new(place.path()).unwrap();
        assert_eq!(watch.wait(Deadline::after_ms(10)).unwrap(), []);
        let path = place.path().join("record");
        let writer = std::thread::spawn({
            let path = path.clone();
            move || {
                std::thread::sleep(std::time::Duration::from_millis(50));
                std::fs::write(path.with_extension("new"), b"ready").unwrap();
                std::fs::rename(path.with_extension("new"), path).unwrap();
            }
        });
        let began = std::time::Instant::now();
        let found = watch
            .until(Deadline::after_ms(10_000), || std::fs::read(&path).ok())
            .unwrap();
        assert_eq!(found.as_deref(), Some(b"ready".as_slice()));
        assert!(
            began.elapsed() < std::time::Duration::from_secs(5),
            "by the event, not by the deadline"
        );
        writer.join().unwrap();
        assert_eq!(watch.until(Deadline::after_ms(30), || None::<()>).unwrap(), None);
        std::fs::remove_file(&path).unwrap();
        assert!(
            watch
                .wait(Deadline::after_ms(5000))
                .unwrap()
                .contains(&Some("record".into()))
        );
    }

    #[test]
    fn only_a_real_directory_is_watched() {
        let place = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(place.path(), place.path().join("link")).unwrap();
        assert_eq!(
            Watch::new(&place.path().join("link")).unwrap_err(),
            Errno::ENOTDIR
        );
        assert_eq!(Watch::new(&place.path().join("none")).unwrap_err(), Errno::ENOENT);
    }
}
