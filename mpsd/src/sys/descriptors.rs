//! Descriptors: the three standard ones, those handed to this program by number, and waiting for one.
#![allow(unsafe_code)]

use super::deadline::Deadline;
use super::raw;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl, open};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::stat::Mode;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// Opens `/dev/null` on each of 0, 1, 2 that is closed, so that nothing opened later lands there: Slurm runs
/// `job_prolog` with descriptor 0 closed. The first thing that a program does.
///
/// # Errors
/// The kernel's, when `/dev/null` does not open.
pub fn fix_standard_descriptors() -> Result<(), Errno> {
    while let Some(closed) = (0..3).find(|fd| !raw::is_open(*fd)) {
        // The lowest free number is taken, which is this one: those below it are open.
        let fd = open("/dev/null", OFlag::O_RDWR, Mode::empty())?;
        if fd.as_raw_fd() != closed {
            return Err(Errno::EBADF);
        }
        let _ = fd.into_raw_fd();
    }
    Ok(())
}

/// Closes every descriptor from 3 on. Only at a program's start, when it has opened nothing itself: what is there came
/// from the scheduler (qsub's socket, spool files, pipes; facts: pbs-live), which waits for its end.
pub fn close_inherited() {
    raw::close_all_except(&[]);
}

/// Puts all three on `/dev/null`: in a child that must hold nothing of anybody's.
///
/// # Errors
/// The kernel's, when `/dev/null` does not open.
pub fn all_to_null() -> Result<(), Errno> {
    let null = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
    let high = raw::duplicate_above(null.as_raw_fd(), 3)?;
    // Where one of the three was closed, it has that number: about to be replaced, not to be closed.
    if null.as_raw_fd() < 3 {
        let _ = null.into_raw_fd();
    }
    let done = (0..3).try_for_each(|fd| raw::duplicate_to(high, fd));
    nix::unistd::close(high)?;
    done
}

/// Takes possession of descriptor `number`, which whoever started this program left open for it. Call once a number,
/// before anything else is opened. Closed on exec from now on.
///
/// # Errors
/// `EBADF` when it is not open, or is one of the standard three.
pub fn take(number: RawFd) -> Result<OwnedFd, Errno> {
    if number < 3 || !raw::is_open(number) {
        return Err(Errno::EBADF);
    }
    // SAFETY: the descriptor is open, and by this function's rule nobody else in this program owns it.
    let owned = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl(&owned, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok(owned)
}

/// Waits until `fd` is readable or at its end; false at the deadline.
///
/// # Errors
/// As poll(2), interruption excepted.
pub fn readable(fd: BorrowedFd<'_>, deadline: Deadline) -> Result<bool, Errno> {
    loop {
        match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], deadline.poll_timeout()) {
            Ok(0) if deadline.expired() => return Ok(false),
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::deadline::Deadline;
    use crate::sys::raw::Exit;
    use crate::sys::spawn::Child;
    use crate::sys::testing::alone;

    /// In a child, since these are the test program's own descriptors.
    fn in_child(work: impl FnOnce() -> bool) {
        let pid = match raw::fork().unwrap() {
            None => raw::exit_now(if work() { 0 } else { 1 }),
            Some(pid) => pid,
        };
        assert_eq!(
            Child::adopt(pid).wait(Deadline::after_ms(5000)),
            Some(Exit::Code(0))
        );
    }

    fn is_null(fd: i32) -> bool {
        let null = nix::sys::stat::stat("/dev/null").map(|s| s.st_rdev);
        nix::sys::stat::fstat(raw::borrow(fd)).map(|s| s.st_rdev) == null
    }

    #[test]
    fn closed_ones_are_reopened_and_open_ones_left() {
        let _alone = alone();
        for closed in [vec![0], vec![1], vec![0, 2], vec![0, 1, 2], vec![]] {
            in_child(|| {
                let pipe = nix::unistd::pipe()
                    .map(|(read, _)| read.into_raw_fd())
                    .unwrap_or(-1);
                let mut good = (0..3).all(|fd| raw::duplicate_to(pipe, fd).is_ok());
                for fd in &closed {
                    good = good && nix::unistd::close(*fd).is_ok();
                }
                good = good && fix_standard_descriptors().is_ok();
                good && (0..3).all(|fd| raw::is_open(fd) && is_null(fd) == closed.contains(&fd))
            });
        }
    }

    #[test]
    fn all_three_go_to_null() {
        let _alone = alone();
        // And nothing else is left open by it.
        let clean = || {
            raw::close_all_except(&[]);
            let good = all_to_null().is_ok() && (0..3).all(is_null);
            good && !(3..64).any(raw::is_open)
        };
        in_child(clean);
        in_child(|| nix::unistd::close(0).is_ok() && nix::unistd::close(2).is_ok() && clean());
    }
}
