//! Waits that end: a point in time, and reading what a child writes until then.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// The deadline that lies `span` from now, or a year if `span` is absurd.
    pub fn after(span: Duration) -> Self {
        let now = Instant::now();
        let year = Duration::from_secs(365 * 86_400);
        Self(now.checked_add(span).unwrap_or(now + year))
    }

    pub fn after_ms(milliseconds: u64) -> Self {
        Self::after(Duration::from_millis(milliseconds))
    }

    #[must_use]
    pub fn within(self, span: Duration) -> Self {
        self.min(Self::after(span))
    }

    /// This deadline moved `span` towards now, which keeps time for the work that follows.
    #[must_use]
    pub fn less(self, span: Duration) -> Self {
        Self(self.0.checked_sub(span).unwrap_or(self.0))
    }

    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    pub fn expired(self) -> bool {
        self.remaining().is_zero()
    }

    /// For `poll(2)`, rounded up so that a loop never spins on its last millisecond.
    pub fn poll_timeout(self) -> PollTimeout {
        let up = self.remaining() + Duration::from_nanos(999_999);
        PollTimeout::try_from(up.as_millis().min(i32::MAX as u128)).unwrap_or(PollTimeout::MAX)
    }

    /// Sleeps for `span`, at most until this deadline; false if it had already passed.
    pub fn sleep(self, span: Duration) -> bool {
        let left = self.remaining();
        std::thread::sleep(span.min(left));
        !left.is_zero()
    }
}

/// Waits until `fd` is readable or at its end; false at the deadline.
pub fn readable(fd: BorrowedFd<'_>, deadline: Deadline) -> Result<bool, Errno> {
    loop {
        let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
        match poll(&mut fds, deadline.poll_timeout()) {
            Ok(0) if deadline.expired() => return Ok(false),
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(errno),
        }
    }
}

/// What a child writes to a pipe, read without waiting.
#[derive(Debug)]
pub struct Output {
    /// `None` after its end.
    pipe: Option<OwnedFd>,
    pub bytes: Vec<u8>,
}

impl Output {
    pub fn pipe() -> Result<(Self, OwnedFd), Errno> {
        let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let (pipe, bytes) = (Some(reader), Vec::new());
        Ok((Self { pipe, bytes }, writer))
    }

    pub fn source(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads what is there. Returns false, and stops, once there are more than `most` bytes in all.
    pub fn read(&mut self, most: usize) -> bool {
        let mut block = [0u8; 8192];
        while let Some(pipe) = &self.pipe {
            match nix::unistd::read(pipe, &mut block) {
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Ok(0) | Err(_) => self.pipe = None,
                Ok(got) => self
                    .bytes
                    .extend_from_slice(block.get(..got).unwrap_or_default()),
            }
            if self.bytes.len() > most {
                return false;
            }
        }
        true
    }
}

/// Opens `/dev/null` on each of 0, 1 and 2 that is closed, so that no later file gets its number:
/// Slurm's prologs lack 0.
pub fn fix_standard_descriptors() -> Result<(), Errno> {
    loop {
        // The lowest free number.
        let fd = open(c"/dev/null", OFlag::O_RDWR | OFlag::O_NOCTTY, Mode::empty())?;
        if fd.as_raw_fd() > 2 {
            return Ok(());
        }
        let _ = fd.into_raw_fd();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_never_negative_rounds_up_for_poll_and_only_narrows() {
        let past = Deadline::after(Duration::ZERO);
        assert!(past.expired());
        assert_eq!(past.poll_timeout().as_millis(), Some(0));
        assert!(!past.sleep(Duration::from_secs(5)));
        let soon = Deadline::after(Duration::from_micros(300));
        assert!(soon.poll_timeout().as_millis() <= Some(1));
        assert!(Deadline::after(Duration::MAX).remaining() > Duration::from_secs(86_400));
        let far = Deadline::after(Duration::from_secs(1 << 40));
        assert_eq!(far.poll_timeout(), PollTimeout::MAX);
        let whole = Deadline::after_ms(200);
        assert_eq!(whole.within(Duration::from_secs(9)), whole);
        assert!(whole.within(Duration::from_millis(10)) < whole);
        assert!(whole.less(Duration::from_millis(150)).remaining() <= Duration::from_millis(50));
    }
}
