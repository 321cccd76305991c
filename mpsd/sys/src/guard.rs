//! Work that may die or hang, done in a child. This process continues, and reports what happened.
//!
//! [`run_guarded`] surrounds a whole program, because Torque counts a prologue that a signal ended
//! as success. [`ask()`] surrounds one question that may hang in the kernel.

use super::cgroup::leave;
use super::deadline::{Deadline, Output};
use super::descriptors;
use super::priority;
use super::raw::{self, Exit};
use super::signals::Signals;
use super::spawn::{Child, KillReason};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Exit code of everything that is neither success nor refusal.
pub const FAULT: u8 = 2;

const MOST_ANSWER: usize = 64 << 10;
const NOTHING: u8 = 2;
const AFTER_KILL: Duration = Duration::from_secs(1);
/// Time between two tries of a reader that is behind: while the worker runs, and after its end.
const BEHIND: Duration = Duration::from_millis(50);
const TURN: Duration = Duration::from_millis(5);

/// Most that is kept for a reader that does not read, before the writer must wait. Bytes.
const MOST_KEPT: usize = 1 << 20;
/// A pipe that accepts a write accepts so much without waiting (PIPE_BUF, pipe(7)). Bytes.
const PIECE: usize = 4096;
const FILE_TIME: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum GuardError {
    #[error("it was ended by signal {0}")]
    Died(i32),
    #[error("it was not done at its deadline, and was ended")]
    Late,
    #[error("it was not done at its deadline, and hangs in the kernel (state D) after SIGKILL")]
    Hangs,
    #[error("no process could be started for it: {0}")]
    NotStarted(#[from] Errno),
}

/// Runs `worker` in a child and returns its code; a panic counts as code 2. Passes SIGTERM, SIGINT
/// and SIGHUP (unless ignored) on to it, and what it writes. The worker dies with this process.
fn guarded(deadline: Deadline, worker: impl FnOnce() -> u8) -> Result<u8, GuardError> {
    let (out, their_out) = Relay::to(1)?;
    let (err, their_err) = Relay::to(2)?;
    let signals = Signals::block(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP])?;
    // If we inherited it as ignored, we and the worker would not learn how children end.
    raw::default_action(Signal::SIGCHLD);
    let parent = nix::unistd::getpid();
    let mut child = match raw::fork()? {
        Some(pid) => Child::adopt_as_ours(pid),
        None => {
            signals.restore();
            let tied = set_pdeathsig(Signal::SIGKILL);
            let spoken =
                nix::unistd::dup2_stdout(&their_out).and(nix::unistd::dup2_stderr(&their_err));
            if tied.and(spoken).is_err() || nix::unistd::getppid() != parent {
                raw::exit_now(FAULT);
            }
            drop((out, err, their_out, their_err));
            let code = catch_unwind(AssertUnwindSafe(worker)).unwrap_or(FAULT);
            let _ = std::io::stdout().flush();
            raw::exit_now(code)
        }
    };
    drop((their_out, their_err));
    let mut streams = [out, err];
    let end = watch(&mut child, &signals, &mut streams, deadline);
    let end = match end {
        Some(Exit::Code(code)) => Ok(code),
        Some(Exit::Signal(signal)) => Err(GuardError::Died(signal)),
        None => Err(match child.kill(Deadline::after(AFTER_KILL)) {
            Some(_) => GuardError::Late,
            None => GuardError::Hangs,
        }),
    };
    // Readers have a moment for its last words.
    let patience = Deadline::after(AFTER_KILL);
    while !pass_all(&mut streams) && patience.sleep(TURN) {}
    end
}

/// An unread stream does not stop the other. False while something is left.
fn pass_all(streams: &mut [Relay]) -> bool {
    let streams = streams.iter_mut();
    streams.fold(true, |all, stream| all & stream.pass())
}

/// Runs `worker` in a child that dies with this process; returns its code, 2 for a panic. Any other
/// end is code 2 and one line on standard error. Call it before anything else is set up.
pub fn run_guarded(program: &str, deadline: Deadline, worker: impl FnOnce() -> u8) -> u8 {
    guarded(deadline, worker).unwrap_or_else(|lost| {
        complain(format!("{program}: {lost}\n").as_bytes());
        FAULT
    })
}

fn watch(
    child: &mut Child,
    signals: &Signals,
    streams: &mut [Relay],
    deadline: Deadline,
) -> Option<Exit> {
    while child.try_wait().is_none() && !deadline.expired() {
        let sources = streams.iter().filter_map(Relay::source);
        let turn = match streams.iter().any(Relay::is_behind) {
            true => deadline.within(BEHIND),
            false => deadline,
        };
        child.wait_with(sources.chain([signals.as_fd()]), turn);
        pass_all(streams);
        while let Ok(Some(signal)) = signals.read() {
            child.signal(signal);
        }
    }
    child.try_wait()
}

/// Runs `work` in a session of its own without our standard streams, and returns at once. A
/// scheduler waits for its descriptors: [`descriptors::close_inherited`] first.
pub fn detach(work: impl FnOnce()) -> Result<(), Errno> {
    match raw::fork()? {
        Some(pid) => {
            priority::hand_down(pid);
            Ok(())
        }
        None => {
            let ready = nix::unistd::setsid().is_ok() && descriptors::all_to_null().is_ok();
            if ready {
                let _ = catch_unwind(AssertUnwindSafe(work));
            }
            raw::exit_now(0)
        }
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AskError {
    /// It hung, or answered without end.
    #[error("the process asked {0}")]
    Killed(KillReason),
    #[error("the process asked ended by {0}")]
    Ended(Exit),
    #[error("no process to be had: {0}")]
    NotStarted(Errno),
}

/// Runs `question` in a child and returns its bytes. The child has **none of our descriptors**:
/// even if it hangs, it holds no stream that slurmd or qsub waits to see closed.
pub fn ask(deadline: Deadline, question: impl FnOnce() -> Vec<u8>) -> Result<Vec<u8>, AskError> {
    ask_with(None, deadline, question)
}

/// [`ask()`] of a child that has our descriptor `kept` as well, which is none of the first three.
fn ask_with(
    kept: Option<BorrowedFd>,
    deadline: Deadline,
    question: impl FnOnce() -> Vec<u8>,
) -> Result<Vec<u8>, AskError> {
    let (mut answer, writer) = Output::pipe().map_err(AskError::NotStarted)?;
    let writer = File::from(writer);
    let asker = nix::unistd::getpid();
    let forked = raw::fork_masked(raw::fork, || {
        let mut keep = vec![writer.as_raw_fd()];
        keep.extend(kept.map(|fd| fd.as_raw_fd()));
        keep.sort_unstable();
        // If the asker is killed, an end may undo what it began: the child must not go on then.
        let tied = || set_pdeathsig(Signal::SIGKILL).is_ok() && nix::unistd::getppid() == asker;
        let bytes = in_session(tied, || {
            raw::close_all_except(&keep);
            question()
        });
        answer_and_exit(&writer, bytes)
    });
    drop(writer);
    let mut child = Child::adopt_as_ours(forked.map_err(AskError::NotStarted)?);
    match child.listen(&mut [&mut answer], None, deadline, MOST_ANSWER) {
        Ok(Exit::Code(0)) => Ok(answer.bytes),
        Ok(other) => Err(AskError::Ended(other)),
        Err(why) => {
            if let KillReason::Late { survivor, .. } = why {
                survivor.into_iter().for_each(leave);
            }
            Err(AskError::Killed(why))
        }
    }
}

/// In a forked child: `work` in a session that the parent kills, without our standard streams.
pub(super) fn in_session(
    prepare: impl FnOnce() -> bool,
    work: impl FnOnce() -> Vec<u8>,
) -> Option<Vec<u8>> {
    let ready = nix::unistd::setsid().is_ok()
        && descriptors::all_to_null().is_ok()
        && raw::reset_signals().is_ok();
    let outcome = (ready && prepare()).then(|| catch_unwind(AssertUnwindSafe(work)));
    outcome?.ok()
}

pub(super) fn answer_and_exit(mut writer: &File, bytes: Option<Vec<u8>>) -> ! {
    let written = bytes.map(|bytes| writer.write_all(&bytes));
    raw::exit_now(match written {
        Some(Ok(())) => 0,
        Some(Err(_)) => 1,
        None => NOTHING,
    })
}

/// Prepares a program that a scheduler starts as root. Its priority is above a flood of users'
/// processes, a panic ends it with `code`, and its caller's descriptors and limits do not matter.
/// Fails without `/dev/null`.
pub fn begin(program: &'static str, code: u8) -> Result<(), Errno> {
    priority::raise();
    install_panic_exit(program, code);
    // First, because a full table of descriptors has no room for `/dev/null`.
    descriptors::close_inherited();
    lift_file_size();
    descriptors::fix_standard_descriptors()
}

/// A write beyond an inherited limit of a file's size ends a program by SIGXFSZ. Without
/// CAP_SYS_RESOURCE the hard limit stays.
fn lift_file_size() {
    let hard = getrlimit(Resource::RLIMIT_FSIZE).map_or(RLIM_INFINITY, |(_, hard)| hard);
    for most in [hard, RLIM_INFINITY] {
        let _ = setrlimit(Resource::RLIMIT_FSIZE, most, most);
    }
}

/// From now on a panic, on any thread, writes one line and ends the process with `code`.
fn install_panic_exit(program: &'static str, code: u8) {
    std::panic::set_hook(Box::new(move |info| {
        let place = info.location().map_or(String::new(), |at| {
            format!(" ({}:{})", at.file(), at.line())
        });
        let text = info.payload();
        let owned = || text.downcast_ref::<String>().map(String::as_str);
        let what = text.downcast_ref::<&str>().copied().or_else(owned);
        let what = what.unwrap_or("panic");
        let line = format!("{program}: internal error: {what}{place}");
        raw::complain(format!("{}\n", line.replace('\n', " ")).as_bytes());
        raw::exit_now(code);
    }));
}

#[derive(Debug)]
struct Relay {
    from: Output,
    to: RawFd,
    is_file: bool,
    hangs: bool,
    passed: usize,
}

impl Relay {
    fn to(to: RawFd) -> Result<(Self, OwnedFd), Errno> {
        let (from, theirs) = Output::pipe()?;
        let relay = Self {
            from,
            to,
            is_file: is_file(to),
            hangs: false,
            passed: 0,
        };
        Ok((relay, theirs))
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        self.from.source().filter(|_| self.has_room())
    }

    fn has_room(&self) -> bool {
        self.from.bytes.len() <= MOST_KEPT
    }

    fn is_behind(&self) -> bool {
        !self.from.bytes.is_empty()
    }

    /// False while something is left. What a file with a dead server does not accept is lost.
    fn pass(&mut self) -> bool {
        let all = self.has_room() && self.from.read(MOST_KEPT);
        if self.is_file && self.is_behind() {
            self.pass_to_file();
        }
        while let Some(rest) = self.from.bytes.get(self.passed..)
            && !rest.is_empty()
        {
            let to = raw::borrow(self.to);
            let mut ready = [PollFd::new(to, PollFlags::POLLOUT)];
            if !matches!(poll(&mut ready, PollTimeout::ZERO), Ok(1..)) {
                return false;
            }
            match nix::unistd::write(to, rest.get(..PIECE).unwrap_or(rest)) {
                Ok(written) => self.passed += written,
                Err(Errno::EINTR) => {}
                // The reader is gone.
                Err(_) => self.passed = self.from.bytes.len(),
            }
        }
        self.from.bytes.clear();
        self.passed = 0;
        all
    }

    fn pass_to_file(&mut self) {
        let rest = self.from.bytes.get(self.passed..).unwrap_or_default();
        if !self.hangs {
            match write_in_child(self.to, rest) {
                // No child can be made: the caller writes it.
                Err(AskError::NotStarted(_)) => return,
                outcome => self.hangs = outcome.is_err(),
            }
        }
        self.passed = self.from.bytes.len();
    }
}

fn complain(bytes: &[u8]) {
    if !is_file(2) || matches!(write_in_child(2, bytes), Err(AskError::NotStarted(_))) {
        raw::complain(bytes);
    }
}

/// Whether a write can hang although poll(2) calls it ready: by its name, so no server is asked.
fn is_file(to: RawFd) -> bool {
    let name = std::fs::read_link(format!("/proc/self/fd/{to}")).unwrap_or_default();
    name.is_absolute() && !name.starts_with("/dev")
}

fn write_in_child(to: RawFd, bytes: &[u8]) -> Result<(), AskError> {
    // A copy, because the child loses the standard three.
    let copy = raw::borrow(to).try_clone_to_owned();
    let copy =
        copy.map_err(|e| AskError::NotStarted(Errno::from_raw(e.raw_os_error().unwrap_or(0))))?;
    let file = File::from(copy);
    let write = || {
        let _ = (&file).write_all(bytes);
        Vec::new()
    };
    ask_with(Some(file.as_fd()), Deadline::after(FILE_TIME), write).map(drop)
}

#[cfg(test)]
mod tests;
