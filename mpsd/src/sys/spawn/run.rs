//! A program run to its end: a deadline, bounded output, and nothing of it left behind.

use super::{Child, Spawn, SpawnError, Stdio};
use crate::sys::deadline::Deadline;
use crate::sys::raw::Exit;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// How long a program that was killed may take to be gone; longer is state D, which no waiting ends.
const AFTER_KILL: Duration = Duration::from_millis(500);
/// How often the end is looked for where the kernel has no pidfds (before Linux 5.3).
const LOOK: Duration = Duration::from_millis(2);

/// A program that has ended, and what it wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How it ended.
    pub exit: Exit,
    /// Its standard output.
    pub out: Vec<u8>,
    /// Its standard error.
    pub err: Vec<u8>,
}

impl Ended {
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
    /// It had not ended at the deadline; it was killed.
    #[error("'{program}' did not end within {} ms", limit.as_millis())]
    Deadline {
        /// The program.
        program: String,
        /// The time it was given.
        limit: Duration,
        /// Its pid, if it is still there: then nothing ends it (state D).
        survives: Option<i32>,
    },
    /// It wrote more than it may; it was killed. No part of such an answer is used: a list that is cut off would say that
    /// the rest does not exist.
    #[error("'{program}' wrote more than {most} bytes")]
    TooMuch {
        /// The program.
        program: String,
        /// The most it may write to each of its two outputs.
        most: usize,
    },
}

impl Spawn {
    /// Starts the program in a session of its own and waits for its end, reading at most `most` bytes of each output.
    /// Whatever it leaves running in that session is killed, so that nobody waits for a copy of a pipe. `stdout` and
    /// `stderr` are set here.
    pub fn run(mut self, deadline: Deadline, most: usize) -> Result<Ended, RunError> {
        let limit = deadline.remaining();
        let program = self.name();
        let pipe = || -> Result<(Output, OwnedFd), Errno> {
            let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
            fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
            let output = Output {
                pipe: Some(reader),
                bytes: Vec::new(),
            };
            Ok((output, writer))
        };
        let (mut out, stdout) = pipe().map_err(self.parent("no pipe to be had"))?;
        let (mut err, stderr) = pipe().map_err(self.parent("no pipe to be had"))?;
        self.session = true;
        self.stdout = Stdio::Fd(stdout);
        self.stderr = Stdio::Fd(stderr);
        self.start_within = self.start_within.min(limit);
        let mut child = self.start()?;
        let mut full = false;
        while !child.has_ended() && !full && !deadline.expired() {
            wait(&child, [&out, &err], deadline);
            full = !(out.read(most) && err.read(most));
        }
        let late = !full && !child.has_ended();
        let Some(exit) = child.kill_session(Deadline::after(AFTER_KILL)) else {
            let survives = Some(child.pid());
            return Err(RunError::Deadline {
                program,
                limit,
                survives,
            });
        };
        if late {
            return Err(RunError::Deadline {
                program,
                limit,
                survives: None,
            });
        }
        if full || !(out.read(most) && err.read(most)) {
            return Err(RunError::TooMuch { program, most });
        }
        let (out, err) = (out.bytes, err.bytes);
        Ok(Ended { exit, out, err })
    }
}

/// Waits until there is something to read, or the program has ended, or the deadline.
fn wait(child: &Child, outputs: [&Output; 2], deadline: Deadline) {
    let pipes = outputs.into_iter().filter_map(|output| output.pipe.as_ref());
    let watched = pipes.map(AsFd::as_fd).chain(child.pidfd());
    let mut watched: Vec<_> = watched.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    let turn = match child.pidfd() {
        Some(_) => deadline,
        None => deadline.within(LOOK),
    };
    // An error can only be an interruption or want of memory: the caller's loop is bounded by the deadline.
    let _ = poll(&mut watched, turn.poll_timeout());
}

/// One of the two outputs; no pipe after its end.
struct Output {
    pipe: Option<OwnedFd>,
    bytes: Vec<u8>,
}

impl Output {
    /// Reads what is there without waiting; false when there is more than `most`.
    fn read(&mut self, most: usize) -> bool {
        let mut some = [0u8; 8192];
        while let Some(pipe) = &self.pipe {
            match nix::unistd::read(pipe, &mut some) {
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Ok(0) | Err(_) => self.pipe = None,
                Ok(got) => self.bytes.extend_from_slice(some.get(..got).unwrap_or_default()),
            }
            if self.bytes.len() > most {
                return false;
            }
        }
        true
    }
}
