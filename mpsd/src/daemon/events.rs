//! What the daemon waits for: signals, ended children, and files that change.

use super::door::Door;
use super::ends::Ends;
use super::tail::CONTROL_LOG;
use crate::sys::signals::Signals;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use nix::sys::signal::Signal;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

/// What is watched of one daemon.
#[derive(Debug, Default)]
pub struct Watches {
    socket: Option<WatchDescriptor>,
    log: Option<WatchDescriptor>,
}

/// The descriptors that are waited on.
#[derive(Debug)]
pub struct Events {
    signals: Signals,
    inotify: Inotify,
    door: Option<Door>,
}

impl Events {
    /// Blocks the signals that come through a descriptor from now on.
    ///
    /// # Errors
    /// One line: the system has no descriptor left.
    pub fn new() -> Result<Self, String> {
        let wanted = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGCHLD];
        let signals = Signals::block(&wanted).map_err(|e| format!("cannot make a signal descriptor: {e}"))?;
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)
            .map_err(|e| format!("cannot watch files: {e}"))?;
        Ok(Self {
            signals,
            inotify,
            door: None,
        })
    }

    /// Wakes for who knocks at `door`, too.
    pub fn watch_door(&mut self, door: Door) {
        self.door = Some(door);
    }

    /// The door, where there is one.
    pub fn door(&self) -> Option<&Door> {
        self.door.as_ref()
    }

    /// Watches for a daemon's socket and its log.
    ///
    /// # Errors
    /// One line: the directory is gone, or the user's watches are used up.
    pub fn watch_start(&mut self, pipe: &Path, log: &Path) -> Result<Watches, String> {
        let watch = |path: &Path, what| {
            let watched = self.inotify.add_watch(path, what).map(Some);
            watched.map_err(|e| format!("cannot watch '{}': {e}", path.display()))
        };
        Ok(Watches {
            socket: watch(pipe, AddWatchFlags::IN_CREATE)?,
            log: watch(&log.join(CONTROL_LOG), AddWatchFlags::IN_MODIFY)?,
        })
    }

    /// No event for a daemon's socket any more: it is there.
    pub fn forget_socket(&mut self, watches: &mut Watches) {
        self.forget(watches.socket.take());
    }

    /// None for its log either: its end is told by a signal.
    ///
    /// In time, because a descriptor of which a file was still watched a moment ago takes the kernel 7 to 25 ms to close (it waits
    /// for the readers of a list, `fsnotify_wait_marks_destroyed`; measured on Linux 6.18), and root waits for our end.
    pub fn forget_log(&mut self, watches: &mut Watches) {
        self.forget(watches.log.take());
    }

    fn forget(&self, watch: Option<WatchDescriptor>) {
        // One whose file is gone is gone itself.
        let _ = watch.map(|watch| self.inotify.rm_watch(watch));
    }

    /// Waits for an event, the end of a client among them, `limit` at most; `None`: for ever. True when it is SIGTERM, SIGINT or SIGHUP.
    ///
    /// # Errors
    /// One line when the system refuses to wait.
    pub fn wait(&mut self, limit: Option<Duration>, ends: &Ends) -> Result<bool, String> {
        // Rounded up: a limit below a millisecond must not become a busy loop.
        let timeout = limit.map_or(PollTimeout::NONE, |d| {
            PollTimeout::try_from(d + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX)
        });
        let own = [self.signals.as_fd(), self.inotify.as_fd()];
        let all = own.into_iter().chain(self.door.as_ref().map(AsFd::as_fd));
        let mut fds: Vec<PollFd<'_>> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        fds.extend(ends.descriptors().map(|fd| PollFd::new(fd, PollFlags::empty())));
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(format!("cannot wait: {e}")),
        }
        // What changed is looked at afresh by the caller; the events themselves only wake.
        while self.inotify.read_events().is_ok_and(|events| !events.is_empty()) {}
        let mut terminate = false;
        while let Ok(Some(signal)) = self.signals.read() {
            terminate |= signal != Signal::SIGCHLD;
        }
        Ok(terminate)
    }
}
