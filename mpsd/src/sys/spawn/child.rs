//! Children of ours: waited for with a deadline, reaped always.

use crate::sys::deadline::Deadline;
use crate::sys::priority;
use crate::sys::process::{Process, ProcessId};
use crate::sys::raw::{self, Exit};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// How often the end is looked for where the kernel has no pidfds (before Linux 5.3).
const LOOK: Duration = Duration::from_millis(2);

/// A child of ours. Dropping it reaps it if it has ended, and otherwise lets it go on.
#[derive(Debug)]
pub struct Child {
    pid: i32,
    id: Option<ProcessId>,
    /// None before Linux 5.3.
    pub(in crate::sys) pidfd: Option<OwnedFd>,
    end: Option<Exit>,
}

impl Child {
    /// A child just forked: until we reap it, its pid cannot pass to another.
    pub(in crate::sys) fn adopt(pid: i32) -> Self {
        let mut child = Self {
            pid,
            id: None,
            pidfd: raw::pidfd_open(pid).ok(),
            end: None,
        };
        child.look();
        child
    }

    /// Reads its start time, if that is not known yet: before exec the child of a process that nobody may look into is
    /// hidden where `/proc` hides processes (`hidepid`).
    pub(super) fn look(&mut self) {
        let find = || Process::find(self.pid).map(|process| process.id());
        self.id = self.id.or_else(find);
    }

    /// [`Child::adopt`] for a child that does root's work: as urgent as its parent.
    pub(in crate::sys) fn adopt_as_ours(pid: i32) -> Self {
        priority::hand_down(pid);
        Self::adopt(pid)
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Pid and start time, for the journal; None where `/proc` does not show it.
    pub fn id(&self) -> Option<ProcessId> {
        self.id
    }

    /// How it ended, if it has. Reaps it; the answer stays.
    pub fn try_wait(&mut self) -> Option<Exit> {
        if self.end.is_none() {
            self.end = match raw::reap(self.pid) {
                Ok(end) => end,
                // Reaped by somebody else (or by SIGCHLD being ignored): it is gone, and nobody knows how.
                Err(_) => Some(Exit::Code(u8::MAX)),
            };
        }
        self.end
    }

    /// Whether it has ended; does not reap it, so that its pid and its session's number stay its own.
    pub(super) fn has_ended(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        // An end by a real-time signal has no name in nix, and is an error here.
        self.end.is_some() || waitid(Id::Pid(Pid::from_raw(self.pid)), flags) != Ok(WaitStatus::StillAlive)
    }

    /// SIGKILL to the session that it leads, itself included, then waits for its end; None when it survives `deadline`.
    pub(super) fn kill_session(&mut self, deadline: Deadline) -> Option<Exit> {
        if self.end.is_none() {
            // Not reaped yet, so the number is not another group's. ESRCH: nobody is left to be signalled.
            let _ = killpg(Pid::from_raw(self.pid), Signal::SIGKILL);
        }
        self.wait(deadline)
    }

    /// Waits for its end; None when `deadline` passes first.
    pub fn wait(&mut self, deadline: Deadline) -> Option<Exit> {
        while self.try_wait().is_none() && !deadline.expired() {
            self.wait_with([], deadline);
        }
        self.try_wait()
    }

    /// Waits until it has ended, or one of these can be read, or the deadline; the caller looks which.
    pub(in crate::sys) fn wait_with<'a>(
        &'a self,
        others: impl IntoIterator<Item = BorrowedFd<'a>>,
        deadline: Deadline,
    ) {
        let all = others.into_iter().chain(self.pidfd.as_ref().map(AsFd::as_fd));
        let mut all: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let turn = match self.pidfd {
            Some(_) => deadline,
            None => deadline.within(LOOK),
        };
        // An error can only be an interruption or want of memory: the caller's loop is bounded by the deadline.
        let _ = poll(&mut all, turn.poll_timeout());
    }

    /// Sends a signal; false when it has ended.
    pub fn signal(&mut self, signal: Signal) -> bool {
        // Not reaped yet, so the pid is its own, though it be a defunct process.
        self.try_wait().is_none() && kill(Pid::from_raw(self.pid), signal).is_ok()
    }

    /// SIGKILL, then waits; None when it survives `deadline` (state D).
    pub fn kill(&mut self, deadline: Deadline) -> Option<Exit> {
        self.signal(Signal::SIGKILL);
        self.wait(deadline)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.try_wait();
    }
}
