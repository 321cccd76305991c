//! Waits for events, and for nothing else: signals, ended children, log lines.

use super::dialogue::Event;
use super::memory::MemoryWatch;
use super::start::{self, Running};
use super::tail::CONTROL_LOG;
use super::user_log::UserLog;
use crate::job::spec::Spec;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

/// What woke us.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Woken {
    /// SIGTERM, SIGINT or SIGHUP.
    pub terminate: bool,
}

/// The descriptors that are waited on.
#[derive(Debug)]
pub struct Events {
    signals: SignalFd,
    inotify: Inotify,
}

impl Events {
    /// Blocks the signals that come through a descriptor from now on.
    ///
    /// # Errors
    /// One line: the system has no descriptor left.
    pub fn new() -> Result<Self, String> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGCHLD] {
            set.add(signal);
        }
        set.thread_block()
            .map_err(|e| format!("cannot block signals: {e}"))?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .map_err(|e| format!("cannot make a signal descriptor: {e}"))?;
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)
            .map_err(|e| format!("cannot watch files: {e}"))?;
        Ok(Self { signals, inotify })
    }

    /// Watches for a daemon's socket and its log.
    ///
    /// # Errors
    /// One line: the directory is gone, or the user's watches are used up.
    pub fn watch_start(&mut self, pipe: &Path, log: &Path) -> Result<(), String> {
        let say = |path: &Path| format!("cannot watch '{}'", path.display());
        self.inotify
            .add_watch(pipe, AddWatchFlags::IN_CREATE)
            .map_err(|e| format!("{}: {e}", say(pipe)))?;
        let file = log.join(CONTROL_LOG);
        self.inotify
            .add_watch(&file, AddWatchFlags::IN_MODIFY)
            .map_err(|e| format!("{}: {e}", say(&file)))?;
        Ok(())
    }

    /// Waits for an event, `limit` at most; `None`: for ever.
    ///
    /// # Errors
    /// One line when the system refuses to wait.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<Woken, String> {
        // Rounded up: a limit below a millisecond must not become a busy loop.
        let timeout = limit.map_or(PollTimeout::NONE, |d| {
            PollTimeout::try_from(d + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX)
        });
        let mut fds = [
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(format!("cannot wait: {e}")),
        }
        // What changed is looked at afresh by the caller; the events themselves only wake.
        while self.inotify.read_events().is_ok_and(|events| !events.is_empty()) {}
        let mut woken = Woken::default();
        while let Ok(Some(info)) = self.signals.read_signal() {
            woken.terminate |= info.ssi_signo != Signal::SIGCHLD as u32;
        }
        Ok(woken)
    }
}

/// Watches over ready daemons until a signal ends us or the last of them has ended.
pub fn until_the_end(spec: &Spec, mut running: Vec<Running>, events: &mut Events, log: &mut UserLog) {
    let mut memory = MemoryWatch::new(spec);
    let mut to_end = None;
    while !running.is_empty() {
        let Ok(woken) = events.wait(memory.period()) else {
            return;
        };
        for daemon in &mut running {
            for line in daemon.tail.lines() {
                if matches!(Event::parse(&line), Some(Event::NewClient(_))) {
                    memory.wake();
                }
                tell(log, &line, &mut to_end);
            }
        }
        running.retain_mut(|daemon| !has_ended(daemon, log));
        memory.look(spec, &running, log);
        if woken.terminate {
            log.line(&format!("job {}: ending MPS on a signal", spec.job));
            running.iter_mut().for_each(start::end);
            return;
        }
    }
}

fn has_ended(daemon: &mut Running, log: &mut UserLog) -> bool {
    match daemon.child.try_wait() {
        Ok(Some(status)) => {
            let what = if status.success() || status.code() == Some(1) {
                "was told to quit"
            } else {
                "died"
            };
            log.line(&format!(
                "control daemon {} {what} ({status}); clients that start from now on run without MPS",
                daemon.child.id()
            ));
            true
        }
        _ => false,
    }
}

/// Says a line of the vendor's log in the user's words. `to_end`: the server that was told to end.
fn tell(log: &mut UserLog, line: &str, to_end: &mut Option<i32>) {
    match Event::parse(line) {
        Some(Event::ServerToEnd(pid)) => *to_end = Some(pid),
        Some(Event::ServerExited(pid, 0)) if *to_end == Some(pid) => {
            log.line(&format!("server {pid} ended"));
        }
        Some(Event::ServerExited(pid, status)) => log.line(&format!(
            "server {pid} died (status {status}): its clients got error 806 (cudaErrorMpsRpcFailure); \
             the next client starts a new server with the same limits"
        )),
        Some(Event::Ready(pid)) => log.line(&format!("server {pid} is ready")),
        Some(Event::Fatal(text)) => log.line(&format!(
            "the vendor's log says: {text}; a client's fatal error (an illegal address, for one) reaches every client on its \
             GPU, and new ones are refused with error 807 (cudaErrorMpsServerNotReady) until all of these have ended"
        )),
        Some(Event::Trouble(text)) => log.line(&format!("the vendor's log says: {text}")),
        _ => {}
    }
}
