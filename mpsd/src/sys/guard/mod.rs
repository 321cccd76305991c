//! Work that may die or hang, done in a child: whatever becomes of it, we go on and say so.
//!
//! [`run_guarded`] is around a whole program, since Torque counts a prologue that a signal ended as success: here any
//! death becomes exit code 2. [`ask()`] is around one question that may hang for ever in the kernel. [`detach`] is for work
//! that goes on after the program has ended.

mod ask;
mod relay;
pub use ask::{AskError, ask};

use super::deadline::Deadline;
use super::descriptors;
use super::priority;
use super::raw::{self, Exit};
use super::signals::Signals;
use super::spawn::Child;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use relay::Relay;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Exit code of everything that is neither success nor refusal.
pub const FAULT: u8 = 2;

/// Time left to a process after SIGKILL. Longer is state D, which no waiting ends.
const AFTER_KILL: Duration = Duration::from_secs(1);

/// How often a reader who did not take all is tried again: at work, and after its end.
const BEHIND: Duration = Duration::from_millis(50);
const TURN: Duration = Duration::from_millis(5);

/// What became of a guarded worker that did not return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// A signal ended it.
    #[error("it was ended by signal {0}")]
    Died(i32),
    /// It was still at work at the deadline.
    #[error("it was not done at its deadline, and was ended")]
    Late,
    /// The same, and it survived SIGKILL.
    #[error("it was not done at its deadline, and hangs in the kernel (state D) after SIGKILL")]
    Hangs,
    /// It could not be started: no process, no memory.
    #[error("no process could be started for it: {0}")]
    NotStarted(Errno),
}

/// Runs `worker` in a child and answers whatever becomes of it; a panic counts as code 2. SIGTERM, SIGINT and SIGHUP
/// go on to the worker (SIGHUP only where it was not ignored), which decides; if we ourselves are killed, so is it.
///
/// The worker keeps our descriptors and session; what it writes is passed on. Call it before anything else is set up.
pub fn guarded(deadline: Deadline, worker: impl FnOnce() -> u8) -> Result<u8, GuardError> {
    let (out, their_out) = Relay::to(1).map_err(GuardError::NotStarted)?;
    let (err, their_err) = Relay::to(2).map_err(GuardError::NotStarted)?;
    let signals = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
    let signals = Signals::block(&signals).map_err(GuardError::NotStarted)?;
    // Inherited as ignored, it would lose every child's end, ours and the worker's.
    let _ = raw::default_action(Signal::SIGCHLD);
    let parent = nix::unistd::getpid();
    let mut child = match raw::fork().map_err(GuardError::NotStarted)? {
        Some(pid) => Child::adopt_as_ours(pid),
        None => {
            signals.restore();
            let tied = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
            let spoken = nix::unistd::dup2_stdout(&their_out).and(nix::unistd::dup2_stderr(&their_err));
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
    // Its last words, for which readers have a moment.
    let patience = Deadline::after(AFTER_KILL);
    while !pass_all(&mut streams) && patience.sleep(TURN) {}
    end
}

/// Passes on what each stream has: one that nobody reads does not stop the other. False while something is left.
fn pass_all(streams: &mut [Relay]) -> bool {
    let mut all = true;
    for stream in streams {
        all &= stream.pass();
    }
    all
}

/// [`guarded`] as an exit code; what was not the worker's own decision is said in one line on standard error.
pub fn run_guarded(program: &str, deadline: Deadline, worker: impl FnOnce() -> u8) -> u8 {
    guarded(deadline, worker).unwrap_or_else(|lost| {
        relay::complain(format!("{program}: {lost}\n").as_bytes());
        FAULT
    })
}

/// Waits for the worker, passing on signals to it, and what it writes.
fn watch(child: &mut Child, signals: &Signals, streams: &mut [Relay], deadline: Deadline) -> Option<Exit> {
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

/// Runs `work` in a process of its own session with standard streams on `/dev/null`, and returns in this one at once.
/// The child keeps this program's descriptors that close on exec (locks, pipes); what was inherited from the scheduler
/// must have been closed before ([`descriptors::close_inherited`]), or somebody waits for it.
///
/// # Errors
/// As fork(2).
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
