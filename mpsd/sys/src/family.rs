//! Programs that must be ended later, with everything that they have started.
//!
//! A child of this process, the keeper, starts them and gets their orphans. It ends them all when
//! its work is done, or when this process is gone. If the keeper is killed, we get its children.

use super::deadline::{Deadline, Output};
use super::guard::{answer_and_exit, in_session};
use super::process::{ProcessTable, Stat, State};
use super::raw::{self, Exit};
use super::spawn::Child;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use nix::unistd::pipe2;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

const GRACE: Duration = Duration::from_secs(2);
const AFTER_KILL: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(10);
const MOST_ANSWER: usize = 64 << 10;

#[derive(Debug)]
pub struct Family {
    keeper: Child,
    answer: Output,
    /// Dropped, it tells the keeper to end everything.
    leash: Option<OwnedFd>,
}

/// Orphans below this process become its children. Fails before Linux 3.4.
pub fn adopt_orphans() -> Result<(), Errno> {
    nix::sys::prctl::set_child_subreaper(true)
}

impl Family {
    /// Starts a keeper that does `work` in a session of its own, and inherits only the descriptors
    /// `kept`: another keeper's leash would keep that one alive after us. `work` returns when it is
    /// done, or when the descriptor that it gets becomes readable. Fails without process or pipe.
    pub fn start(
        kept: &[BorrowedFd<'_>],
        work: impl FnOnce(BorrowedFd<'_>) -> Vec<u8>,
    ) -> Result<Self, Errno> {
        let (tied, leash) = pipe2(OFlag::O_CLOEXEC)?;
        let (answer, writer) = Output::pipe()?;
        match raw::fork()? {
            Some(pid) => Ok(Self {
                keeper: Child::adopt(pid),
                answer,
                leash: Some(leash),
            }),
            None => {
                let mut keep: Vec<RawFd> = kept.iter().map(|fd| fd.as_raw_fd()).collect();
                keep.extend([tied.as_raw_fd(), writer.as_raw_fd()]);
                keep.sort_unstable();
                let prepare = || {
                    raw::close_all_except(&keep);
                    adopt_orphans().is_ok()
                };
                let bytes = in_session(prepare, || work(tied.as_fd()));
                end_descendants();
                answer_and_exit(&writer.into(), bytes)
            }
        }
    }

    /// Readable when there is something for [`Family::try_end`].
    pub fn source(&self) -> Option<BorrowedFd<'_>> {
        self.answer.source()
    }

    /// The work's answer once it is done, or a lost keeper's end.
    pub fn try_end(&mut self) -> Option<Result<Vec<u8>, Exit>> {
        let ended = self.keeper.try_wait();
        if !self.answer.read(MOST_ANSWER) {
            self.answer.bytes.truncate(MOST_ANSWER);
        }
        ended.map(|end| match end {
            Exit::Code(0) => Ok(std::mem::take(&mut self.answer.bytes)),
            other => Err(other),
        })
    }

    /// Tells the keeper to end everything, without waiting.
    pub fn let_go(&mut self) {
        drop(self.leash.take());
    }
}

/// The pids of the processes that each of `families` keeps, at one moment.
pub fn processes<'a>(families: impl IntoIterator<Item = &'a Family>) -> Vec<Vec<i32>> {
    let table = ProcessTable::scan().unwrap_or_default();
    let of = |family: &Family| table.descendants(family.keeper.pid());
    let pids = |family| of(family).iter().map(|entry| entry.stat.id.pid).collect();
    families.into_iter().map(pids).collect()
}

impl Drop for Family {
    fn drop(&mut self) {
        self.let_go();
        let patience = Deadline::after(GRACE + AFTER_KILL + AFTER_KILL);
        if self.keeper.wait(patience) != Some(Exit::Code(0)) {
            self.keeper.kill(Deadline::after(AFTER_KILL));
            end_descendants();
        }
    }
}

/// Waits for those of our children that have ended, and says how.
pub fn reap_ended() -> Vec<(i32, Exit)> {
    std::iter::from_fn(|| raw::reap(None).ok().flatten()).collect()
}

/// Ends all processes below this one, by SIGTERM and then SIGKILL. Returns how our children ended.
pub fn end_descendants() -> Vec<(i32, Exit)> {
    let (polite, patience) = (Deadline::after(GRACE), Deadline::after(GRACE + AFTER_KILL));
    let own = nix::unistd::getpid().as_raw();
    let (mut signalled, mut ended) = (BTreeSet::new(), Vec::new());
    loop {
        ended.extend(reap_ended());
        let table = ProcessTable::scan();
        let below = table.iter().flat_map(|table| table.descendants(own));
        let mut alive = below.map(|entry| &entry.stat).collect::<Vec<_>>();
        let has_ended = |stat: &Stat| matches!(stat.state, State::Defunct | State::Dead);
        alive.retain(|stat| !has_ended(stat) || stat.threads > 1);
        if alive.is_empty() && table.is_some() {
            ended.extend(reap_ended());
            return ended;
        }
        for id in alive.into_iter().map(|stat| stat.id) {
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
            return ended;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{STRANGER, alone, forked, outlived_by_a_thread, soon};

    #[test]
    fn a_process_whose_first_thread_has_ended_is_ended_too() {
        let _alone = alone();
        let mut keeper = forked(|| {
            let child = outlived_by_a_thread(STRANGER);
            let ended = end_descendants();
            u8::from(!ended.iter().any(|(pid, _)| *pid == child.pid()))
        });
        assert_eq!(keeper.wait(soon()), Some(Exit::Code(0)));
    }
}
