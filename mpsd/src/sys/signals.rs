//! Signals as something to read in a poll loop, never as handlers.

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::{AsFd, BorrowedFd};

/// A set of signals, blocked and read from a descriptor. Dropped, the mask found is back.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
    found: SigSet,
}

/// The program of `command` begins with the default action for every signal and none blocked, whatever this process
/// blocks or ignores: the standard library hands both down, and the vendor's programs then cannot be told to end.
pub use super::raw::reset_signals_of as start_fresh;

impl Signals {
    /// Blocks these signals in this thread (in all, where it is the first and only one). A signal that is ignored
    /// stays ignored and never arrives; for SIGCHLD that would also reap children.
    ///
    /// # Errors
    /// The kernel's, when no descriptor is to be had.
    pub fn block(signals: &[Signal]) -> Result<Self, Errno> {
        let mut set = SigSet::empty();
        for signal in signals {
            set.add(*signal);
        }
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let found = set.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        Ok(Self { fd, found })
    }

    /// To poll: readable when one has arrived.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The next one that has arrived; None when there is none.
    ///
    /// # Errors
    /// The kernel's, interruption excepted.
    pub fn read(&self) -> Result<Option<Signal>, Errno> {
        loop {
            match self.fd.read_signal() {
                Ok(None) => return Ok(None),
                // A number without a name is a real-time signal's, and none of those is in the set.
                Ok(Some(info)) => {
                    let number = i32::try_from(info.ssi_signo).unwrap_or(0);
                    return Signal::try_from(number).map(Some);
                }
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// The mask found, again, while the descriptor stays: for the child of a fork.
    pub(super) fn restore(&self) {
        super::raw::restore_mask(&self.found);
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.restore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::deadline::Deadline;
    use crate::sys::descriptors::readable;
    use crate::sys::raw;
    use crate::sys::testing::alone;

    #[test]
    fn a_blocked_signal_is_read_and_the_mask_comes_back() {
        let _alone = alone();
        let before = SigSet::thread_get_mask().unwrap();
        let signals = Signals::block(&[Signal::SIGUSR1]).unwrap();
        assert_eq!(signals.read().unwrap(), None);
        nix::sys::signal::raise(Signal::SIGUSR1).unwrap();
        assert!(readable(signals.as_fd(), Deadline::after_ms(5000)).unwrap());
        assert_eq!(signals.read().unwrap(), Some(Signal::SIGUSR1));
        assert_eq!(signals.read().unwrap(), None);
        drop(signals);
        assert_eq!(SigSet::thread_get_mask().unwrap(), before);
    }

    #[test]
    fn actions_that_cannot_be_set_are_refused() {
        assert_eq!(raw::default_action(Signal::SIGKILL), Err(Errno::EINVAL));
        assert_eq!(raw::default_action(Signal::SIGCHLD), Ok(()));
    }
}
