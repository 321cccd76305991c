//! A program run to its end: a deadline, bounded output, and nothing of it left behind.

use super::{Child, Spawn, SpawnError};
use crate::sys::Exit;
use crate::sys::deadline::{Deadline, Output};
use crate::sys::process::{Process, State};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How long a process that was killed may take to be gone, on a node that is busy.
const AFTER_KILL: Duration = Duration::from_secs(1);
/// After this time one that is in state D is left alone: no waiting ends it.
const SOON: Duration = Duration::from_millis(100);

/// A program that has ended, and what it wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildOutput {
    /// How it ended.
    pub exit: Exit,
    /// Its standard output.
    pub out: Vec<u8>,
    /// Its standard error.
    pub err: Vec<u8>,
}

impl ChildOutput {
    /// Standard output, then standard error, as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned() + &String::from_utf8_lossy(&self.err)
    }
}

/// Why a program's answer is not known.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It was not started.
    #[error(transparent)]
    Start(#[from] SpawnError),
    /// It was started, and killed before it had answered.
    #[error("'{program}' {why}")]
    Killed {
        /// The program.
        program: String,
        /// What was wrong.
        why: KillReason,
    },
}

/// Why a process was killed before it had answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KillReason {
    /// It had not ended at the deadline.
    #[error("did not end within {} ms{}", waited.as_millis(), stays(*survivor))]
    Late {
        /// How long its end was waited for.
        waited: Duration,
        /// Its pid, if it is still there: state D, which SIGKILL does not end.
        survivor: Option<i32>,
    },
    /// The caller's signal came first.
    #[error("was ended, because something else came first")]
    Interrupted,
    /// It wrote more than so many bytes. No part of such an answer is used: a list that is cut off would say that the rest
    /// does not exist.
    #[error("wrote more than {0} bytes")]
    TooMuch(usize),
}

fn stays(survivor: Option<i32>) -> String {
    survivor.map_or_else(String::new, |pid| {
        format!(", and SIGKILL does not end its process {pid}")
    })
}

impl Spawn {
    /// Starts the program in a session of its own and waits for its end, reading at most `most` bytes of each output.
    /// Whatever it leaves running in that session is killed, so that nobody waits for a copy of a pipe. `session`,
    /// `stdout` and `stderr` are set here.
    pub fn run(self, deadline: Deadline, most: usize) -> Result<ChildOutput, RunError> {
        self.run_unless(None, deadline, most)
    }

    /// The same; it is killed as well as soon as `stop` can be read.
    pub fn run_unless(
        mut self,
        stop: Option<BorrowedFd<'_>>,
        deadline: Deadline,
        most: usize,
    ) -> Result<ChildOutput, RunError> {
        let program = self.name();
        let (mut out, stdout) = Output::pipe().map_err(self.parent("no pipe to be had"))?;
        let (mut err, stderr) = Output::pipe().map_err(self.parent("no pipe to be had"))?;
        self.session = true;
        self.stdout = Some(stdout);
        self.stderr = Some(stderr);
        let mut child = self.start(deadline)?;
        match listen(&mut child, &mut [&mut out, &mut err], stop, deadline, most) {
            Ok(exit) => Ok(ChildOutput {
                exit,
                out: out.bytes,
                err: err.bytes,
            }),
            Err(why) => Err(RunError::Killed { program, why }),
        }
    }
}

/// Reads the outputs of `child`, which leads a session or is about to, until it ends; then kills what is left of the
/// session, and reaps.
pub(in crate::sys) fn listen(
    child: &mut Child,
    outputs: &mut [&mut Output],
    stop: Option<BorrowedFd<'_>>,
    deadline: Deadline,
    most: usize,
) -> Result<Exit, KillReason> {
    let began = Instant::now();
    let mut fits = true;
    while fits && !child.has_ended() && !deadline.expired() && !stop.is_some_and(is_readable) {
        let sources = outputs.iter().filter_map(|output| output.source());
        child.wait_with(sources.chain(stop), deadline);
        fits = outputs.iter_mut().all(|output| output.read(most));
    }
    let late = fits && !child.has_ended();
    let waited = began.elapsed();
    let stopped = late && stop.is_some_and(is_readable);
    let exit = put_down(child);
    // What it wrote just before its end.
    fits = fits && outputs.iter_mut().all(|output| output.read(most));
    let survivor = exit.is_none().then_some(child.pid());
    match exit {
        _ if stopped => Err(KillReason::Interrupted),
        Some(_) if !fits => Err(KillReason::TooMuch(most)),
        Some(exit) if !late => Ok(exit),
        _ => Err(KillReason::Late { waited, survivor }),
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut one = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut one, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

fn put_down(child: &mut Child) -> Option<Exit> {
    child.kill_session(Deadline::after(SOON)).or_else(|| {
        let state = Process::find(child.pid()).and_then(|process| process.state());
        let ends = state != Some(State::Uninterruptible);
        ends.then(|| child.wait(Deadline::after(AFTER_KILL)))?
    })
}
