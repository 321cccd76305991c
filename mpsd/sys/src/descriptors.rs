//! Descriptors: the three standard ones, those handed to this program by number, waiting for one.
#![allow(unsafe_code)]

use super::deadline::Deadline;
use super::raw;
pub use mpsd_core::deadline::{fix_standard_descriptors, readable};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl, open, openat};
use nix::sys::stat::{Mode, SFlag};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// Closes every descriptor from 3 on, at a program's start: the scheduler waits for their end
/// (docs/facts/pbs.md#daemons-left-behind).
pub fn close_inherited() {
    raw::close_all_except(&[]);
}

/// Puts all three on `/dev/null`, in a child that must hold no stream of another process.
pub fn all_to_null() -> Result<(), Errno> {
    let null = null()?;
    let high = raw::duplicate_above(null.as_raw_fd(), 3)?;
    // `null` may have the number of one of the three, which must be replaced, not closed.
    if null.as_raw_fd() < 3 {
        let _ = null.into_raw_fd();
    }
    let done = (0..3).try_for_each(|fd| raw::duplicate_to(high, fd));
    nix::unistd::close(high)?;
    done
}

pub(super) fn null() -> Result<OwnedFd, Errno> {
    open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())
}

/// The reading end of a pipe with these bytes. EAGAIN: more than a pipe holds, 4,096 at least.
pub fn holding(bytes: &[u8]) -> Result<OwnedFd, Errno> {
    let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    match nix::unistd::write(&writer, bytes)? {
        all if all == bytes.len() => Ok(reader),
        _ => Err(Errno::EAGAIN),
    }
}

/// Takes descriptor `number`, which the parent left open; exec will close it. Call it once, before
/// anything else is opened. EBADF: it is not open, or is one of the standard three.
pub fn take(number: RawFd) -> Result<OwnedFd, Errno> {
    if number < 3 || !raw::is_open(number) {
        return Err(Errno::EBADF);
    }
    // SAFETY: the descriptor is open, and by this function's rule it has no other owner.
    let owned = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl(&owned, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok(owned)
}

/// As [`take`], but only a regular file; anything else stays open (EINVAL).
pub fn take_file(number: RawFd) -> Result<OwnedFd, Errno> {
    if !raw::is_open(number) {
        return Err(Errno::EBADF);
    }
    let kind = nix::sys::stat::fstat(raw::borrow(number))?.st_mode & SFlag::S_IFMT.bits();
    if kind != SFlag::S_IFREG.bits() {
        return Err(Errno::EINVAL);
    }
    take(number)
}

/// Up to `cap` bytes of a file of `/proc` or of a cgroup, which never waits; not through a link.
pub(super) fn read_at(directory: impl AsFd, file: &str, cap: usize) -> Result<Vec<u8>, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let file = File::from(openat(directory, file, flags, Mode::empty())?);
    let mut bytes = Vec::with_capacity(cap.min(1 << 16));
    let read = file.take(cap as u64).read_to_end(&mut bytes);
    read.map_err(|error| Errno::try_from(error).unwrap_or(Errno::EIO))?;
    Ok(bytes)
}

pub(super) fn write_at(directory: impl AsFd, file: &str, text: &str) -> Result<(), Errno> {
    let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let fd = openat(directory, file, flags, Mode::empty())?;
    nix::unistd::write(&fd, text.as_bytes()).map(drop)
}

/// `None`: the stream ended, or has more than `most` bytes. ETIMEDOUT at the deadline.
pub fn read_line(
    fd: BorrowedFd<'_>,
    deadline: Deadline,
    most: usize,
) -> Result<Option<Vec<u8>>, Errno> {
    let mut text = Vec::new();
    let mut block = [0; 4096];
    while text.len() <= most {
        if !readable(fd, deadline)? {
            return Err(Errno::ETIMEDOUT);
        }
        match nix::unistd::read(fd, &mut block) {
            Ok(0) => return Ok(None),
            Ok(got) => text.extend_from_slice(block.get(..got).unwrap_or_default()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        if let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            text.truncate(end);
            return Ok(Some(text));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::Exit;
    use crate::testing::{alone, forked, soon};

    /// In a child, because these are the test program's own descriptors.
    fn in_child(work: impl FnOnce() -> bool) {
        let mut child = forked(|| u8::from(!work()));
        assert_eq!(child.wait(soon()), Some(Exit::Code(0)));
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
                let (pipe, _) = nix::unistd::pipe().unwrap();
                let open = |fd| raw::duplicate_to(pipe.as_raw_fd(), fd).is_ok();
                let close = |fd: &i32| nix::unistd::close(*fd).is_ok();
                let good = (0..3).all(open) && closed.iter().all(close);
                let good = good && fix_standard_descriptors().is_ok();
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

    #[test]
    fn a_line_without_an_end_is_not_read_for_ever() {
        let _alone = alone();
        let whole = holding(b"a\nb").unwrap();
        let line = read_line(whole.as_fd(), soon(), 10);
        assert_eq!(line, Ok(Some(b"a".to_vec())));
        let (reader, writer) = nix::unistd::pipe().unwrap();
        nix::unistd::write(&writer, &[b'x'; 8192]).unwrap();
        let line = read_line(reader.as_fd(), Deadline::after_ms(500), 4096);
        assert_eq!(line, Ok(None), "its writer may write more");
    }

    #[test]
    fn a_number_is_taken_as_a_file_where_it_is_one_and_else_left_open() {
        let _alone = alone();
        in_child(|| {
            raw::close_all_except(&[]);
            let file = File::open("/proc/self/exe").unwrap().into_raw_fd();
            let pipe = nix::unistd::pipe().unwrap().0.into_raw_fd();
            let taken = take_file(file).is_ok_and(|fd| fd.as_raw_fd() == file);
            let left = take_file(pipe).err() == Some(Errno::EINVAL) && raw::is_open(pipe);
            taken && left && take_file(60).err() == Some(Errno::EBADF)
        });
    }
}
