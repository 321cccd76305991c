//! Work that may die or hang, done in a child: whatever becomes of it, we go on and say so.
//!
//! Two uses. [`run_guarded`] is around a whole program, since Torque counts a prologue that a signal ended as
//! success: here any death becomes exit code 2. [`isolate`] is around one call that may hang for ever in the kernel
//! or in a vendor's library (NVML on a dead GPU).

use super::deadline::Deadline;
use super::descriptors;
use super::process::{Process, State};
use super::raw::{self, Exit};
use super::signals::{Signals, default_action};
use super::spawn::Child;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::Signal;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Exit code of everything that is neither success nor refusal.
pub const FAULT: u8 = 2;

/// Time left to a process after SIGKILL. Longer is state D, which no waiting ends.
const AFTER_KILL: Duration = Duration::from_secs(1);

/// Most that an isolated call may answer.
pub const MAX_ANSWER: usize = 1 << 20;

/// What became of a guarded worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarded {
    /// It returned this code.
    Returned(u8),
    /// A signal ended it.
    Died(i32),
    /// It was still at work at the deadline and was killed; false if it survived SIGKILL.
    Deadline {
        /// Whether it is gone.
        gone: bool,
    },
    /// It could not be started: no process, no memory.
    NotStarted(Errno),
}

impl Guarded {
    /// The exit code: the worker's own, or 2.
    pub fn code(self) -> u8 {
        if let Self::Returned(code) = self {
            code
        } else {
            FAULT
        }
    }
}

impl std::fmt::Display for Guarded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Returned(code) => write!(f, "the worker returned {code}"),
            Self::Died(signal) => write!(f, "the worker was ended by signal {signal}"),
            Self::Deadline { gone: true } => write!(f, "the worker was killed at the deadline"),
            Self::Deadline { gone: false } => {
                write!(f, "the worker hangs in the kernel (state D) after SIGKILL")
            }
            Self::NotStarted(errno) => write!(f, "no process to be had for the worker: {errno}"),
        }
    }
}

/// Runs `worker` in a child and answers whatever becomes of it; a panic counts as code 2. SIGTERM, SIGINT and SIGHUP
/// go on to the worker (SIGHUP only where it was not ignored), which decides; if we ourselves are killed, so is it.
///
/// The worker keeps our descriptors, session and standard streams. Call it before anything else is set up.
pub fn guarded(deadline: Deadline, worker: impl FnOnce() -> u8) -> Guarded {
    let signals = match Signals::block(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]) {
        Ok(signals) => signals,
        Err(errno) => return Guarded::NotStarted(errno),
    };
    // Inherited as ignored, it would lose every child's end, ours and the worker's.
    let _ = default_action(&[Signal::SIGCHLD]);
    let parent = nix::unistd::getpid();
    let mut child = match raw::fork() {
        Err(errno) => return Guarded::NotStarted(errno),
        Ok(Some(pid)) => Child::adopt(pid),
        Ok(None) => {
            signals.restore();
            let tied = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
            if tied.is_err() || nix::unistd::getppid() != parent {
                raw::exit_now(FAULT);
            }
            let code = catch_unwind(AssertUnwindSafe(worker)).unwrap_or(FAULT);
            leave(code)
        }
    };
    match watch(&mut child, &signals, deadline) {
        Some(Exit::Code(code)) => Guarded::Returned(code),
        Some(Exit::Signal(signal)) => Guarded::Died(signal),
        None => Guarded::Deadline {
            gone: child.kill(Deadline::after(AFTER_KILL)).is_some(),
        },
    }
}

/// [`guarded`] as an exit code; what was not the worker's own decision is said in one line on standard error.
pub fn run_guarded(program: &str, deadline: Deadline, worker: impl FnOnce() -> u8) -> u8 {
    let outcome = guarded(deadline, worker);
    if !matches!(outcome, Guarded::Returned(_)) {
        raw::complain(format!("{program}: {outcome}\n").as_bytes());
    }
    outcome.code()
}

/// Waits for the worker, passing signals on.
fn watch(child: &mut Child, signals: &Signals, deadline: Deadline) -> Option<Exit> {
    loop {
        if let Some(end) = child.try_wait() {
            return Some(end);
        }
        if deadline.expired() {
            return None;
        }
        // Without pidfds (before Linux 5.3) its end is looked for every few milliseconds.
        let turn = if child.pidfd().is_some() {
            deadline
        } else {
            deadline.within(Duration::from_millis(5))
        };
        let mut watched = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        watched.extend(child.pidfd().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        // An error here can only be an interruption or want of memory: the loop is bounded by the deadline.
        let _ = poll(&mut watched, turn.poll_timeout());
        drop(watched);
        while let Ok(Some(received)) = signals.read() {
            if let Some(signal) = received.signal() {
                child.signal(signal);
            }
        }
    }
}

/// Ends a forked child after our own code has run in it.
fn leave(code: u8) -> ! {
    let _ = std::io::stdout().flush();
    raw::exit_now(code)
}

/// Why an isolated call has no answer.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Isolated {
    /// Nothing within its time. It was killed; `hangs` if it is still there (state D: a dead driver or file system).
    #[error("no answer in time{}", if *.hangs { ", and its process survives SIGKILL" } else { "" })]
    Deadline {
        /// Whether it survived SIGKILL.
        hangs: bool,
        /// Its pid.
        pid: i32,
    },
    /// A signal ended it: a crash in the vendor's library.
    #[error("its process was ended by signal {0}")]
    Died(i32),
    /// It panicked, or the library called exit.
    #[error("its process ended with exit code {0}")]
    Exited(u8),
    /// More than [`MAX_ANSWER`] bytes.
    #[error("its answer is too long")]
    TooLong,
    /// No process or pipe to be had.
    #[error("no process to be had: {0}")]
    NotStarted(Errno),
}

/// Runs `call` in a child and returns its bytes. The child has standard streams on `/dev/null` and **none of our other
/// descriptors**: should it hang for ever, it holds nothing that somebody waits to see closed (slurmd and qsub wait so).
pub fn isolate(deadline: Deadline, call: impl FnOnce() -> Vec<u8>) -> Result<Vec<u8>, Isolated> {
    isolate_keeping(&[], deadline, call)
}

/// [`isolate`] for a call that uses these descriptors.
pub fn isolate_keeping(
    keep: &[BorrowedFd<'_>],
    deadline: Deadline,
    call: impl FnOnce() -> Vec<u8>,
) -> Result<Vec<u8>, Isolated> {
    let (answer, question) = nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(Isolated::NotStarted)?;
    let mut kept: Vec<i32> = keep
        .iter()
        .map(AsRawFd::as_raw_fd)
        .chain([question.as_raw_fd()])
        .collect();
    kept.sort_unstable();
    let mask = raw::block_all().map_err(Isolated::NotStarted)?;
    let mut child = match raw::fork() {
        Ok(Some(pid)) => Child::adopt(pid),
        Ok(None) => in_isolation(&kept, question, call),
        Err(errno) => {
            raw::restore_mask(&mask);
            return Err(Isolated::NotStarted(errno));
        }
    };
    raw::restore_mask(&mask);
    drop(question);
    let outcome = collect(&answer, deadline);
    match outcome {
        Ok(bytes) => match child.wait(deadline.within(AFTER_KILL).max(Deadline::after_ms(50))) {
            Some(Exit::Code(0)) => Ok(bytes),
            Some(Exit::Code(code)) => Err(Isolated::Exited(code)),
            Some(Exit::Signal(signal)) => Err(Isolated::Died(signal)),
            // It has answered, and then hangs in its own end: a driver that does not close. No answer to rely on.
            None => Err(abandon(&mut child)),
        },
        Err(None) => Err(abandon(&mut child)),
        Err(Some(error)) => {
            child.kill(Deadline::after(AFTER_KILL));
            Err(error)
        }
    }
}

fn in_isolation(kept: &[i32], question: OwnedFd, call: impl FnOnce() -> Vec<u8>) -> ! {
    if descriptors::all_to_null().is_err() || raw::reset_signals().is_err() {
        raw::exit_now(FAULT);
    }
    raw::close_all_except(kept);
    let Ok(bytes) = catch_unwind(AssertUnwindSafe(call)) else {
        raw::exit_now(FAULT)
    };
    let mut pipe = std::fs::File::from(question);
    let written = pipe.write_all(&bytes);
    raw::exit_now(if written.is_ok() { 0 } else { FAULT })
}

/// Everything up to the end of the pipe; `Err(None)` at the deadline.
fn collect(answer: &OwnedFd, deadline: Deadline) -> Result<Vec<u8>, Option<Isolated>> {
    let mut bytes = Vec::new();
    let mut some = [0u8; 16_384];
    loop {
        if !descriptors::readable(answer.as_fd(), deadline)
            .map_err(|errno| Some(Isolated::NotStarted(errno)))?
        {
            return Err(None);
        }
        match nix::unistd::read(answer, &mut some) {
            Ok(0) => return Ok(bytes),
            Ok(got) => bytes.extend_from_slice(some.get(..got).unwrap_or_default()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(Some(Isolated::NotStarted(errno))),
        }
        if bytes.len() > MAX_ANSWER {
            return Err(Some(Isolated::TooLong));
        }
    }
}

/// SIGKILL, and a short look whether that ended it.
fn abandon(child: &mut Child) -> Isolated {
    let pid = child.pid();
    child.signal(Signal::SIGKILL);
    // One in state D stays so: waiting the whole time for it would only cost ours.
    let hopeless = || {
        Process::find(pid)
            .ok()
            .flatten()
            .and_then(|p| p.state().ok().flatten())
    };
    let soon = Deadline::after_ms(100);
    let gone = child.wait(soon).is_some()
        || (hopeless() != Some(State::Uninterruptible) && child.wait(Deadline::after(AFTER_KILL)).is_some());
    Isolated::Deadline { hangs: !gone, pid }
}

/// Runs `work` in a process of its own session with standard streams on `/dev/null`, and returns in this one at once.
/// The child keeps this program's descriptors that close on exec (locks, pipes); what was inherited from the scheduler
/// must have been closed before ([`descriptors::close_inherited`]), or somebody waits for it.
///
/// # Errors
/// As fork(2).
pub fn detach(work: impl FnOnce()) -> Result<(), Errno> {
    match raw::fork()? {
        Some(_) => Ok(()),
        None => {
            let ready = nix::unistd::setsid().is_ok() && descriptors::all_to_null().is_ok();
            if ready {
                let _ = catch_unwind(AssertUnwindSafe(work));
            }
            raw::exit_now(0)
        }
    }
}

/// From now on a panic, on any thread, writes one line and ends the process with `code`: never by a signal, never with
/// a thread left behind. Where a panic is to be caught ([`guarded`]) it is caught by the parent, as this code.
pub fn install_panic_exit(program: &'static str, code: u8) {
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload();
        let what = text
            .downcast_ref::<&str>()
            .copied()
            .or(text.downcast_ref::<String>().map(String::as_str));
        let place = info
            .location()
            .map_or(String::new(), |at| format!(" ({}:{})", at.file(), at.line()));
        let line = format!("{program}: internal error: {}{place}", what.unwrap_or("panic"));
        raw::complain(format!("{}\n", line.replace('\n', " ")).as_bytes());
        raw::exit_now(code);
    }));
}

#[cfg(test)]
mod tests;
