//! A question whose answer may hang for ever in the kernel, asked in a child.

use crate::sys::Exit;
use crate::sys::cgroup::leave;
use crate::sys::deadline::{Deadline, Output};
use crate::sys::spawn::{Child, KillReason, listen};
use crate::sys::{descriptors, raw};
use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Most that a question may be answered with. Bytes.
pub const MOST_ANSWER: usize = 64 << 10;
/// Exit code of a child whose question came to no answer.
const NOTHING: u8 = 2;

/// Why there is no answer.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AskError {
    /// It hung, or answered without end, and was killed.
    #[error("the process asked {0}")]
    Killed(KillReason),
    /// It ended in another way than by an answer: a panic, a signal.
    #[error("the process asked ended by {0}")]
    Ended(Exit),
    /// There was no process or pipe to be had.
    #[error("no process to be had: {0}")]
    NotStarted(Errno),
}

/// Runs `question` in a child and returns its bytes. The child has standard streams on `/dev/null` and **none of our other
/// descriptors**: should it hang for ever, it holds nothing that somebody waits to see closed (slurmd and qsub wait so).
/// `question` opens itself what it looks at.
pub fn ask(deadline: Deadline, question: impl FnOnce() -> Vec<u8>) -> Result<Vec<u8>, AskError> {
    ask_with(None, deadline, question)
}

/// [`ask()`] of a child that has our descriptor `kept` as well; one of the three standard ones it would lose.
pub(super) fn ask_with(
    kept: Option<BorrowedFd>,
    deadline: Deadline,
    question: impl FnOnce() -> Vec<u8>,
) -> Result<Vec<u8>, AskError> {
    let (mut answer, writer) = Output::pipe().map_err(AskError::NotStarted)?;
    let asker = nix::unistd::getpid();
    let mask = raw::block_all().map_err(AskError::NotStarted)?;
    let forked = match raw::fork() {
        Ok(None) => in_child(asker, writer, kept, question),
        Ok(Some(pid)) => Ok(Child::adopt_as_ours(pid)),
        Err(errno) => Err(AskError::NotStarted(errno)),
    };
    raw::restore_mask(&mask);
    drop(writer);
    let mut child = forked?;
    match listen(&mut child, &mut [&mut answer], None, deadline, MOST_ANSWER) {
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

fn in_child(asker: Pid, writer: OwnedFd, kept: Option<BorrowedFd>, question: impl FnOnce() -> Vec<u8>) -> ! {
    // The session is what the parent kills, with whatever the question has started.
    let ready =
        nix::unistd::setsid().is_ok() && descriptors::all_to_null().is_ok() && raw::reset_signals().is_ok();
    // Whoever asked may be killed, and what it began be undone meanwhile: nothing is changed behind that.
    let tied = || set_pdeathsig(Signal::SIGKILL).is_ok() && nix::unistd::getppid() == asker;
    if ready && tied() {
        let mut keep = vec![writer.as_raw_fd()];
        keep.extend(kept.map(|fd| fd.as_raw_fd()));
        keep.sort_unstable();
        raw::close_all_except(&keep);
        if let Ok(bytes) = catch_unwind(AssertUnwindSafe(question)) {
            let written = std::fs::File::from(writer).write_all(&bytes);
            raw::exit_now(u8::from(written.is_err()));
        }
    }
    raw::exit_now(NOTHING)
}

#[cfg(test)]
#[path = "ask_tests.rs"]
mod tests;
