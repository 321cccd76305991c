//! Programs that are started to be ended again, with everything they have started.
//!
//! A keeper, a child of this process, starts them. Orphans below the keeper become its children, so it finds all of them by
//! descent alone. It ends them when its work is done, or when this process is gone and its end of a pipe closes. If the
//! keeper is killed, they become ours, and we end them.

use super::deadline::{Deadline, Output};
use super::guard::{answer_and_exit, in_session};
use super::process::{ProcessTable, State};
use super::raw::{self, Exit};
use super::spawn::Child;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use nix::unistd::pipe2;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// From SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// From SIGKILL to giving up: longer is state D, which no waiting ends.
const AFTER_KILL: Duration = Duration::from_secs(3);
/// Between two scans for processes that are left.
const PAUSE: Duration = Duration::from_millis(10);
/// Longest answer of a keeper's work. Bytes.
const MOST_ANSWER: usize = 4 << 20;

/// A keeper at work.
#[derive(Debug)]
pub struct Family {
    keeper: Child,
    /// What the keeper's work comes to.
    answer: Output,
    /// Dropped, it tells the keeper to end everything.
    leash: Option<OwnedFd>,
}

/// Makes this process the parent of every orphan below it.
///
/// # Errors
/// prctl(2)'s.
pub fn adopt_orphans() -> Result<(), Errno> {
    nix::sys::prctl::set_child_subreaper(true)
}

impl Family {
    /// Starts a keeper that does `work` in a session of its own, without our standard streams. `work` returns when it is done,
    /// or when the descriptor that it gets becomes readable: then everything is to end.
    ///
    /// # Errors
    /// No process or pipe to be had.
    pub fn start(work: impl FnOnce(BorrowedFd<'_>) -> Vec<u8>) -> Result<Self, Errno> {
        let (tied, leash) = pipe2(OFlag::O_CLOEXEC)?;
        let (answer, writer) = Output::pipe()?;
        match raw::fork()? {
            Some(pid) => Ok(Self {
                keeper: Child::adopt(pid),
                answer,
                leash: Some(leash),
            }),
            None => {
                drop((leash, answer));
                let bytes = in_session(|| adopt_orphans().is_ok(), || work(tied.as_fd()));
                end_descendants();
                answer_and_exit(writer, bytes)
            }
        }
    }

    /// Waits until the work is done, one of `others` is readable, or for `turn`. Returns what the work came to once it is
    /// done, or how a lost keeper ended.
    pub fn wait(&mut self, others: &[BorrowedFd<'_>], turn: Duration) -> Option<Result<Vec<u8>, Exit>> {
        let watched = others.iter().copied().chain(self.answer.source());
        self.keeper.wait_with(watched, Deadline::after(turn));
        let ended = self.keeper.try_wait();
        if !self.answer.read(MOST_ANSWER) {
            self.answer.bytes.truncate(MOST_ANSWER);
        }
        ended.map(|end| match end {
            Exit::Code(0) => Ok(std::mem::take(&mut self.answer.bytes)),
            other => Err(other),
        })
    }

    /// The pids of all processes below the keeper.
    pub fn members(&self) -> Vec<i32> {
        let table = ProcessTable::scan().unwrap_or_default();
        let all = table.descendants(self.keeper.pid());
        all.iter().map(|entry| entry.stat.id.pid).collect()
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        drop(self.leash.take());
        let patience = Deadline::after(GRACE + AFTER_KILL + AFTER_KILL);
        if self.keeper.wait(patience) != Some(Exit::Code(0)) {
            self.keeper.kill(Deadline::after(AFTER_KILL));
            end_descendants();
        }
    }
}

/// Reaps the children that have ended: pid and end of each.
pub fn reap_ended() -> Vec<(i32, Exit)> {
    std::iter::from_fn(|| raw::reap(-1).ok().flatten()).collect()
}

/// Ends all processes below this one: SIGTERM, then SIGKILL to those that are left, and to what they have started since.
pub fn end_descendants() {
    let (polite, patience) = (Deadline::after(GRACE), Deadline::after(GRACE + AFTER_KILL));
    let own = nix::unistd::getpid().as_raw();
    let mut signalled = BTreeSet::new();
    loop {
        reap_ended();
        let table = ProcessTable::scan();
        let mut alive = table
            .as_ref()
            .map_or_else(Vec::new, |table| table.descendants(own));
        alive.retain(|entry| {
            !matches!(entry.stat.state, State::Defunct | State::Dead) || entry.stat.threads > 1
        });
        if alive.is_empty() && table.is_some() {
            reap_ended();
            return;
        }
        for entry in alive {
            let id = entry.stat.id;
            let signal = match polite.expired() {
                true => Signal::SIGKILL,
                false if signalled.insert(id) => Signal::SIGTERM,
                false => continue,
            };
            if let Some(process) = id.open() {
                process.signal(signal);
            }
        }
        if !patience.sleep(PAUSE) {
            return;
        }
    }
}
