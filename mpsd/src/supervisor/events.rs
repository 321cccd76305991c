//! What the daemon waits for: signals, ended children and clients, and files that change.

use super::logs::CONTROL_LOG;
use super::observer::ClientWatch;
use crate::job::spec::GO;
use mpsd_sys::deadline::Deadline;
use mpsd_sys::descriptors::readable;
use mpsd_sys::signals::Signals;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use nix::sys::signal::Signal;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

#[derive(Debug, Default)]
pub struct Watches {
    pub socket: Option<WatchDescriptor>,
    /// End it before the daemon's end. Closing the descriptor right after its last watch takes the
    /// kernel 7 to 25 ms (`fsnotify_wait_marks_destroyed`, Linux 6.18), and root waits for our end.
    pub log: Option<WatchDescriptor>,
}

#[derive(Debug)]
pub struct Events {
    signals: Signals,
    inotify: Inotify,
    /// Root says by it when the servers may start; `None` after that.
    gate: Option<File>,
}

impl Events {
    /// Their `gate` is closed until root sends [`GO`].
    pub fn new(gate: File) -> Result<Self, String> {
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
        Ok(Self {
            signals,
            inotify,
            gate: Some(gate),
        })
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

    /// True at the moment when root lets the servers start. Without root they may not.
    pub fn opens_gate(&mut self) -> Result<bool, String> {
        let Some(mut gate) = self.gate.as_ref() else {
            return Ok(false);
        };
        if !readable(gate.as_fd(), Deadline::after(Duration::ZERO))
            .map_err(|e| format!("cannot wait: {e}"))?
        {
            return Ok(false);
        }
        if !matches!(gate.read(&mut [0; GO.len()]), Ok(1..)) {
            return Err("mps-prologue has gone before it let the servers start".to_owned());
        }
        self.gate = None;
        Ok(true)
    }

    pub fn is_gate_open(&self) -> bool {
        self.gate.is_none()
    }

    pub fn forget(&self, watch: &mut Option<WatchDescriptor>) {
        // The kernel has removed the watch of a file that is gone.
        let _ = watch.take().map(|watch| self.inotify.rm_watch(watch));
    }

    /// Waits for an event, for `limit` at most; `None`: no limit. True: SIGTERM, SIGINT or SIGHUP.
    pub fn wait(&mut self, limit: Option<Duration>, clients: &ClientWatch) -> Result<bool, String> {
        // Rounded up: a limit below a millisecond must not become a busy loop.
        let timeout = limit.map_or(PollTimeout::NONE, |d| {
            PollTimeout::try_from(d + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX)
        });
        let own = [self.signals.as_fd(), self.inotify.as_fd()];
        let all = own.into_iter().chain(self.gate.as_ref().map(AsFd::as_fd));
        let mut fds: Vec<PollFd<'_>> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let clients = clients.descriptors();
        fds.extend(clients.map(|fd| PollFd::new(fd, PollFlags::empty())));
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(format!("cannot wait: {e}")),
        }
        // The events only wake us: the caller reads the files.
        while self
            .inotify
            .read_events()
            .is_ok_and(|events| !events.is_empty())
        {}
        let mut terminate = false;
        while let Ok(Some(signal)) = self.signals.read() {
            terminate |= signal != Signal::SIGCHLD;
        }
        Ok(terminate)
    }
}
