//! What the daemon waits for: signals, ended children and clients, and files that change.

use super::logs::CONTROL_LOG;
use super::observer::ClientWatch;
use mpsd_sys::signals::Signals;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use nix::sys::signal::Signal;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

#[derive(Debug, Default)]
pub struct Watches {
    pub socket: Option<WatchDescriptor>,
    /// End it before the daemon's end: closing the descriptor right after its last watch takes 7 to
    /// 25 ms (`fsnotify_wait_marks_destroyed`, Linux 6.18).
    pub log: Option<WatchDescriptor>,
}

#[derive(Debug)]
pub struct Events {
    signals: Signals,
    inotify: Inotify,
}

impl Events {
    pub fn new() -> Result<Self, String> {
        let signals = [
            Signal::SIGTERM,
            Signal::SIGINT,
            Signal::SIGHUP,
            Signal::SIGCHLD,
        ];
        let signals = Signals::block(&signals)
            .map_err(|e| format!("cannot make a signal descriptor: {e}"))?;
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)
            .map_err(|e| format!("cannot watch files: {e}"))?;
        Ok(Self { signals, inotify })
    }

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

    pub fn forget(&self, watch: &mut Option<WatchDescriptor>) {
        // The kernel has removed the watch of a file that is gone.
        let _ = watch.take().map(|watch| self.inotify.rm_watch(watch));
    }

    /// Waits for `limit` at most; `None`: no limit. True: SIGTERM, SIGINT or SIGHUP.
    pub fn wait(&mut self, limit: Option<Duration>, clients: &ClientWatch) -> Result<bool, String> {
        // Rounded up: a limit below a millisecond must not become a busy loop.
        let timeout = limit.map_or(PollTimeout::NONE, |d| {
            PollTimeout::try_from(d + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX)
        });
        let own = [self.signals.as_fd(), self.inotify.as_fd()];
        let own = own.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let mut fds = Vec::from(own);
        let clients = clients.descriptors();
        fds.extend(clients.map(|fd| PollFd::new(fd, PollFlags::empty())));
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(format!("cannot wait: {e}")),
        }
        // The events only wake us: the caller reads the files.
        while matches!(self.inotify.read_events(), Ok(events) if !events.is_empty()) {}
        let mut terminate = false;
        while let Ok(Some(signal)) = self.signals.read() {
            terminate |= signal != Signal::SIGCHLD;
        }
        Ok(terminate)
    }
}
