//! What a worker writes, passed on: a worker that hangs for ever must not hold a stream that a scheduler reads to its end.

use super::{AskError, ask_with};
use crate::sys::deadline::{Deadline, Output};
use crate::sys::raw;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

/// Most that is kept for a reader that does not read. After that the writer waits, as it would without the guard. Bytes.
const MOST: usize = 1 << 20;
/// A pipe that accepts a write accepts so much without waiting (PIPE_BUF, pipe(7)). Bytes.
const PIECE: usize = 4096;
const FILE_TIME: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Relay {
    from: Output,
    to: RawFd,
    is_file: bool,
    /// A file that did not accept a write in time.
    hangs: bool,
    passed: usize,
}

impl Relay {
    /// A stream that ends in our own descriptor `to`, and the worker's end of it.
    pub(super) fn to(to: RawFd) -> Result<(Self, OwnedFd), Errno> {
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

    /// What to wait for; nothing while no more can be kept.
    pub(super) fn source(&self) -> Option<BorrowedFd<'_>> {
        self.from.source().filter(|_| self.has_room())
    }

    fn has_room(&self) -> bool {
        self.from.bytes.len() <= MOST
    }

    pub(super) fn is_behind(&self) -> bool {
        !self.from.bytes.is_empty()
    }

    /// Passes on what is there; false while something is left. A file whose server is gone loses what it does not accept.
    pub(super) fn pass(&mut self) -> bool {
        let all = self.has_room() && self.from.read(MOST);
        if self.is_file && self.is_behind() {
            self.pass_to_file();
        }
        while let Some(rest) = self.from.bytes.get(self.passed..).filter(|rest| !rest.is_empty()) {
            let to = raw::borrow(self.to);
            let mut ready = [PollFd::new(to, PollFlags::POLLOUT)];
            if !matches!(poll(&mut ready, PollTimeout::ZERO), Ok(1..)) {
                return false;
            }
            match nix::unistd::write(to, rest.get(..PIECE).unwrap_or(rest)) {
                Ok(written) => self.passed += written,
                Err(Errno::EINTR) => {}
                // There is no reader any more.
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
                // Without a child it is written here.
                Err(AskError::NotStarted(_)) => return,
                outcome => self.hangs = outcome.is_err(),
            }
        }
        self.passed = self.from.bytes.len();
    }
}

pub(super) fn complain(bytes: &[u8]) {
    if !is_file(2) || matches!(write_in_child(2, bytes), Err(AskError::NotStarted(_))) {
        raw::complain(bytes);
    }
}

/// Whether a write to `to` can hang although poll(2) calls it ready. By name, so that the file's server is not asked.
fn is_file(to: RawFd) -> bool {
    let name = std::fs::read_link(format!("/proc/self/fd/{to}")).unwrap_or_default();
    name.is_absolute() && !name.starts_with("/dev")
}

fn write_in_child(to: RawFd, bytes: &[u8]) -> Result<(), AskError> {
    // A copy, because the child loses the standard three.
    let copy = raw::borrow(to).try_clone_to_owned();
    let copy = copy.map_err(|e| AskError::NotStarted(Errno::from_raw(e.raw_os_error().unwrap_or(0))))?;
    let file = File::from(copy);
    let write = || {
        let _ = (&file).write_all(bytes);
        Vec::new()
    };
    ask_with(Some(file.as_fd()), Deadline::after(FILE_TIME), write).map(drop)
}
