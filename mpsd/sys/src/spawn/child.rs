//! Children: every wait has a deadline, every output a bound, and every child is reaped.

use crate::deadline::{Deadline, Output, readable};
use crate::priority;
use crate::process::{Process, ProcessId, State};
use crate::raw::{self, Exit};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(2);
const AFTER_KILL: Duration = Duration::from_secs(1);
/// After this time a killed process in state D is left alone, because a longer wait does not help.
const SOON: Duration = Duration::from_millis(100);

/// A child of this process. Dropping it reaps it if it has ended, and otherwise lets it run.
#[derive(Debug)]
pub struct Child {
    pid: i32,
    id: Option<ProcessId>,
    /// `None` before Linux 5.3.
    pub(crate) pidfd: Option<OwnedFd>,
    end: Option<Exit>,
    pub(super) unhidden: Option<Errno>,
}

impl Child {
    pub(crate) fn adopt(pid: i32) -> Self {
        let mut child = Self {
            pid,
            id: None,
            pidfd: raw::pidfd_open(pid).ok(),
            end: None,
            unhidden: None,
        };
        child.read_id();
        child
    }

    /// For a child that does root's work: as urgent as its parent.
    pub(crate) fn adopt_as_ours(pid: i32) -> Self {
        priority::hand_down(pid);
        Self::adopt(pid)
    }

    /// Reads its start time, unless known. Under `hidepid` it may be hidden until exec.
    pub(super) fn read_id(&mut self) {
        let find = || Process::find(self.pid).map(|process| process.id());
        self.id = self.id.or_else(find);
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// `None` if `/proc` does not show it.
    pub fn id(&self) -> Option<ProcessId> {
        self.id
    }

    /// Why it can open all files that were to be hidden from it.
    pub fn unhidden(&self) -> Option<Errno> {
        self.unhidden
    }

    pub fn try_wait(&mut self) -> Option<Exit> {
        if self.end.is_none() {
            // An error: it was reaped elsewhere, or SIGCHLD is ignored. Its exit code is lost.
            self.end = match raw::reap(Some(self.pid)) {
                Ok(found) => found.map(|(_, exit)| exit),
                Err(_) => Some(Exit::Code(u8::MAX)),
            };
        }
        self.end
    }

    /// Without reaping it, so its pid and its session's number stay its own.
    fn has_ended(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        // nix has no name for a real-time signal: such an end is an error here.
        self.end.is_some()
            || waitid(Id::Pid(Pid::from_raw(self.pid)), flags) != Ok(WaitStatus::StillAlive)
    }

    pub fn wait(&mut self, deadline: Deadline) -> Option<Exit> {
        while self.try_wait().is_none() && !deadline.expired() {
            self.wait_with([], deadline);
        }
        self.try_wait()
    }

    /// Waits for its end, one of `others` or the deadline; the caller finds out which.
    pub(crate) fn wait_with<'a>(
        &'a self,
        others: impl IntoIterator<Item = BorrowedFd<'a>>,
        deadline: Deadline,
    ) {
        let own = self.pidfd.as_ref().map(AsFd::as_fd);
        let all = others.into_iter().chain(own);
        let mut all: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let turn = match self.pidfd {
            Some(_) => deadline,
            None => deadline.within(PAUSE),
        };
        // An error is an interruption or lack of memory: the deadline bounds the caller's loop.
        let _ = poll(&mut all, turn.poll_timeout());
    }

    pub fn signal(&mut self, signal: Signal) -> bool {
        // Not reaped yet, so the pid is its own, even if it is defunct.
        self.try_wait().is_none() && kill(Pid::from_raw(self.pid), signal).is_ok()
    }

    pub fn kill(&mut self, deadline: Deadline) -> Option<Exit> {
        self.signal(Signal::SIGKILL);
        self.wait(deadline)
    }

    /// Ends the session that it leads, and reaps it. `None`: SIGKILL does not end it.
    fn end_session(&mut self) -> Option<Exit> {
        if self.end.is_none() {
            // Not reaped yet, so the number is its own. It may lead no group yet.
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
            let _ = killpg(Pid::from_raw(self.pid), Signal::SIGKILL);
        }
        self.wait(Deadline::after(SOON)).or_else(|| {
            let state = Process::find(self.pid).and_then(|process| process.state());
            let ends = state != Some(State::Uninterruptible);
            ends.then(|| self.wait(Deadline::after(AFTER_KILL)))?
        })
    }

    /// Reads the outputs of this child, which leads a session, until it ends; then ends the rest.
    pub(crate) fn listen(
        &mut self,
        outputs: &mut [&mut Output],
        stop: Option<BorrowedFd<'_>>,
        deadline: Deadline,
        most: usize,
    ) -> Result<Exit, KillReason> {
        let began = Instant::now();
        let now = Deadline::after(Duration::ZERO);
        let is_stopped = || stop.is_some_and(|stop| readable(stop, now) == Ok(true));
        let mut fits = true;
        while fits && !self.has_ended() && !deadline.expired() && !is_stopped() {
            let sources = outputs.iter().filter_map(|output| output.source());
            self.wait_with(sources.chain(stop), deadline);
            fits = outputs.iter_mut().all(|output| output.read(most));
        }
        let late = fits && !self.has_ended();
        let waited = began.elapsed();
        let stopped = late && is_stopped();
        let exit = self.end_session();
        // What it wrote just before its end.
        fits = fits && outputs.iter_mut().all(|output| output.read(most));
        match exit {
            _ if stopped => Err(KillReason::Interrupted),
            Some(_) if !fits => Err(KillReason::TooMuch(most)),
            Some(exit) if !late => Ok(exit),
            _ => {
                let survivor = exit.is_none().then_some(self.pid);
                Err(KillReason::Late { waited, survivor })
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.try_wait();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KillReason {
    #[error("did not end within {} ms{}", waited.as_millis(), survives(*survivor))]
    Late {
        waited: Duration,
        /// Its pid, if it is still there: state D, which SIGKILL does not end.
        survivor: Option<i32>,
    },
    #[error("was ended, because something else came first")]
    Interrupted,
    /// No part is used: a list that is cut off would claim that the rest does not exist.
    #[error("wrote more than {0} bytes")]
    TooMuch(usize),
}

fn survives(survivor: Option<i32>) -> String {
    survivor.map_or_else(String::new, |pid| {
        format!(", and SIGKILL does not end its process {pid}")
    })
}
