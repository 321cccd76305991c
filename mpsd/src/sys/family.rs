//! Programs that are started to be ended again, with everything they have started.
//!
//! A keeper, a child of this process, starts them, and orphans below it become its children. It ends them all when its work
//! is done, or when this process is gone and its end of a pipe closes. If the keeper is killed, they become ours.

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

const GRACE: Duration = Duration::from_secs(2);
const AFTER_KILL: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(10);
const MOST_ANSWER: usize = 4 << 20;

#[derive(Debug)]
pub struct Family {
    keeper: Child,
    answer: Output,
    /// Dropped, it tells the keeper to end everything.
    leash: Option<OwnedFd>,
}

pub fn adopt_orphans() -> Result<(), Errno> {
    nix::sys::prctl::set_child_subreaper(true)
}

impl Family {
    /// Starts a keeper that does `work` in a session of its own. `work` returns when it is done, or when the descriptor
    /// that it gets becomes readable: then everything is to end.
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
                answer_and_exit(&writer.into(), bytes)
            }
        }
    }

    /// Waits until the work is done, one of `others` is readable, or for `turn`. Returns the work's answer, or a lost
    /// keeper's end.
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

pub fn reap_ended() -> Vec<(i32, Exit)> {
    std::iter::from_fn(|| raw::reap(None).ok().flatten()).collect()
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
