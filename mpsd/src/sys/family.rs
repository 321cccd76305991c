//! Programs that are started to be ended again, with whatever they have started.
//!
//! A keeper, a process of ours, starts them. What loses its parent below it becomes the keeper's child, so that it finds all of
//! them by descent alone. It ends them when its work is done, and when we are gone, however that came: then its end of a pipe
//! closes. Should the keeper be killed, they become ours, and we end them.

use super::deadline::Deadline;
use super::descriptors;
use super::process::{ProcessTable, State};
use super::raw::{self, Exit};
use super::spawn::Child;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use nix::unistd::pipe2;
use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// From SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// From SIGKILL to giving up: longer is state D, which no waiting ends.
const AFTER_KILL: Duration = Duration::from_secs(3);
/// How often is looked who is left.
const LOOK: Duration = Duration::from_millis(10);
/// Most that a keeper's work may come to. Bytes.
const MOST_ANSWER: usize = 4 << 20;

/// A keeper at work.
#[derive(Debug)]
pub struct Family {
    keeper: Child,
    /// What the keeper says in the end.
    answer: OwnedFd,
    said: Vec<u8>,
    /// Dropped, it tells the keeper to end everything.
    leash: Option<OwnedFd>,
}

/// Makes this process the parent of every orphan among those below it.
///
/// # Errors
/// prctl(2)'s.
pub fn adopt_orphans() -> Result<(), Errno> {
    nix::sys::prctl::set_child_subreaper(true)
}

impl Family {
    /// Starts a keeper that does `work` in a session of its own, without our standard streams. `work` returns when it is done, or
    /// when the descriptor that it is given becomes readable: everything is to end.
    ///
    /// # Errors
    /// No process or pipe to be had.
    pub fn start(work: impl FnOnce(BorrowedFd<'_>) -> Vec<u8>) -> Result<Self, Errno> {
        let (tied, leash) = pipe2(OFlag::O_CLOEXEC)?;
        let (answer, writer) = pipe2(OFlag::O_CLOEXEC)?;
        match raw::fork()? {
            Some(pid) => Ok(Self {
                keeper: Child::adopt(pid),
                answer,
                said: Vec::new(),
                leash: Some(leash),
            }),
            None => {
                drop((leash, answer));
                let ready = raw::reset_signals().is_ok()
                    && nix::unistd::setsid().is_ok()
                    && descriptors::all_to_null().is_ok()
                    && adopt_orphans().is_ok();
                let outcome = ready.then(|| catch_unwind(AssertUnwindSafe(|| work(tied.as_fd()))));
                end_descendants();
                let written = match outcome {
                    Some(Ok(bytes)) => std::fs::File::from(writer).write_all(&bytes).is_ok(),
                    _ => false,
                };
                raw::exit_now(u8::from(!written))
            }
        }
    }

    /// Waits until the work is done, or one of `others` can be read, or for `turn`. What the work came to, once it is done; how
    /// the keeper ended otherwise, where it was lost.
    pub fn wait(&mut self, others: &[BorrowedFd<'_>], turn: Duration) -> Option<Result<Vec<u8>, Exit>> {
        let deadline = Deadline::after(turn);
        let watched = others.iter().copied().chain([self.answer.as_fd()]);
        self.keeper.wait_with(watched, deadline);
        let ended = self.keeper.try_wait();
        while descriptors::readable(self.answer.as_fd(), Deadline::after(Duration::ZERO)) == Ok(true) {
            let mut some = vec![0; 65_536];
            match nix::unistd::read(&self.answer, &mut some) {
                Ok(0) | Err(_) => break,
                Ok(got) if self.said.len() < MOST_ANSWER => {
                    self.said.extend_from_slice(some.get(..got).unwrap_or_default());
                }
                Ok(_) => {}
            }
        }
        ended.map(|end| match end {
            Exit::Code(0) => Ok(std::mem::take(&mut self.said)),
            other => Err(other),
        })
    }

    /// The pids of those who run below the keeper.
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
    std::iter::from_fn(|| raw::reap_any().ok().flatten()).collect()
}

/// Ends all processes below this one: SIGTERM, and SIGKILL to those that are left after a while, and to those whom they have
/// started since.
pub fn end_descendants() {
    let (polite, patience) = (Deadline::after(GRACE), Deadline::after(GRACE + AFTER_KILL));
    let own = nix::unistd::getpid().as_raw();
    let mut told = BTreeSet::new();
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
                false if told.insert(id) => Signal::SIGTERM,
                false => continue,
            };
            if let Some(process) = id.open() {
                process.signal(signal);
            }
        }
        if !patience.sleep(LOOK) {
            return;
        }
    }
}
