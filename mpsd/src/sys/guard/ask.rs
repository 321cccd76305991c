//! A question whose answer may hang for ever in the kernel, asked in a child.

use crate::sys::Exit;
use crate::sys::cgroup::leave;
use crate::sys::deadline::{Deadline, Output};
use crate::sys::spawn::{Child, KillReason};
use crate::sys::{descriptors, raw};
use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(super) const MOST_ANSWER: usize = 64 << 10;
pub(super) const NOTHING: u8 = 2;

/// Why there is no answer.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AskError {
    /// It hung, or answered without end.
    #[error("the process asked {0}")]
    Killed(KillReason),
    /// It panicked, or a signal ended it.
    #[error("the process asked ended by {0}")]
    Ended(Exit),
    /// Neither process nor pipe was to be had.
    #[error("no process to be had: {0}")]
    NotStarted(Errno),
}

/// Runs `question` in a child and returns its bytes. The child has **none of our descriptors**: should it hang for ever, it
/// holds no stream that slurmd or qsub waits to see closed.
pub fn ask(deadline: Deadline, question: impl FnOnce() -> Vec<u8>) -> Result<Vec<u8>, AskError> {
    ask_with(None, deadline, question)
}

/// [`ask()`] of a child that has our descriptor `kept` as well, which is none of the standard three.
pub(super) fn ask_with(
    kept: Option<BorrowedFd>,
    deadline: Deadline,
    question: impl FnOnce() -> Vec<u8>,
) -> Result<Vec<u8>, AskError> {
    let (mut answer, writer) = Output::pipe().map_err(AskError::NotStarted)?;
    let asker = nix::unistd::getpid();
    let mask = raw::block_all().map_err(AskError::NotStarted)?;
    let forked = match raw::fork() {
        Ok(None) => {
            let mut keep = vec![writer.as_raw_fd()];
            keep.extend(kept.map(|fd| fd.as_raw_fd()));
            keep.sort_unstable();
            // The asker may be killed, and what it began be undone: the child must change nothing after that.
            let tied = || set_pdeathsig(Signal::SIGKILL).is_ok() && nix::unistd::getppid() == asker;
            let bytes = in_session(tied, || {
                raw::close_all_except(&keep);
                question()
            });
            answer_and_exit(writer, bytes)
        }
        Ok(Some(pid)) => Ok(Child::adopt_as_ours(pid)),
        Err(errno) => Err(AskError::NotStarted(errno)),
    };
    raw::restore_mask(&mask);
    drop(writer);
    let mut child = forked?;
    match child.listen(&mut [&mut answer], None, deadline, MOST_ANSWER) {
        Ok(Exit::Code(0)) => Ok(answer.bytes),
        Ok(other) => Err(AskError::Ended(other)),
        Err(why) => {
            if let KillReason::Late {
                survivor: Some(pid), ..
            } = why
            {
                leave(pid);
            }
            Err(AskError::Killed(why))
        }
    }
}

/// In a forked child: `work` in a session of its own, which the parent kills, without our standard streams. `None`: it
/// failed.
pub(in crate::sys) fn in_session(
    prepare: impl FnOnce() -> bool,
    work: impl FnOnce() -> Vec<u8>,
) -> Option<Vec<u8>> {
    let ready =
        nix::unistd::setsid().is_ok() && descriptors::all_to_null().is_ok() && raw::reset_signals().is_ok();
    let outcome = (ready && prepare()).then(|| catch_unwind(AssertUnwindSafe(work)));
    outcome?.ok()
}

pub(in crate::sys) fn answer_and_exit(writer: OwnedFd, bytes: Option<Vec<u8>>) -> ! {
    let written = bytes.map(|bytes| std::fs::File::from(writer).write_all(&bytes));
    raw::exit_now(match written {
        Some(Ok(())) => 0,
        Some(Err(_)) => 1,
        None => NOTHING,
    })
}
