//! What a worker writes, passed on: one that hangs for ever must hold nothing that a scheduler reads to its end.

use crate::sys::raw;
use crate::sys::spawn::Output;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

/// Most that is kept for a reader who does not read. Bytes.
const MOST: usize = 1 << 20;
/// A pipe that takes something takes so much without waiting (PIPE_BUF, pipe(7)). Bytes.
const PIECE: usize = 4096;

/// One standard stream of a worker.
#[derive(Debug)]
pub(super) struct Relay {
    from: Output,
    to: RawFd,
    passed: usize,
}

impl Relay {
    /// A stream that ends in our own descriptor `to`, and the worker's end of it.
    pub(super) fn to(to: RawFd) -> Result<(Self, OwnedFd), Errno> {
        let (from, theirs) = Output::pipe()?;
        let passed = 0;
        Ok((Self { from, to, passed }, theirs))
    }

    /// What to wait for.
    pub(super) fn source(&self) -> Option<BorrowedFd<'_>> {
        self.from.source()
    }

    /// Passes on what is there, without waiting for anybody; false while something is left.
    pub(super) fn pass(&mut self) -> bool {
        self.from.read(MOST);
        while let Some(rest) = self.from.bytes.get(self.passed..).filter(|rest| !rest.is_empty()) {
            let to = raw::borrow(self.to);
            let mut ready = [PollFd::new(to, PollFlags::POLLOUT)];
            if !matches!(poll(&mut ready, PollTimeout::ZERO), Ok(1..)) {
                return false;
            }
            match nix::unistd::write(to, rest.get(..PIECE).unwrap_or(rest)) {
                Ok(written) => self.passed += written,
                Err(Errno::EINTR) => {}
                // Nobody reads any more.
                Err(_) => self.passed = self.from.bytes.len(),
            }
        }
        self.from.bytes.clear();
        self.passed = 0;
        true
    }
}
