//! Descriptors that were handed to this program by number.
#![allow(unsafe_code)]

use super::deadline::Deadline;
use super::{process, raw};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Takes possession of descriptor `number`, which whoever started this program left open for it. Call once a number,
/// before anything else is opened. Closed on exec from now on.
///
/// # Errors
/// `EBADF` when it is not open, or is one of the standard three.
pub fn take(number: RawFd) -> io::Result<OwnedFd> {
    if number < 3 || !raw::is_open(number) {
        return Err(Errno::EBADF.into());
    }
    // SAFETY: the descriptor is open, and by this function's rule nobody else in this program owns it.
    let owned = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl(&owned, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok(owned)
}

/// Waits until `fd` is readable or at its end; false at the deadline.
///
/// # Errors
/// As poll(2).
pub fn readable(fd: BorrowedFd<'_>, deadline: Deadline) -> io::Result<bool> {
    Ok(process::poll_readable(fd, deadline)?)
}
