//! Signals that a poll loop reads, without handlers.

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::{AsFd, BorrowedFd};

#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
    found: SigSet,
}

pub use super::raw::reset_signals_of as start_fresh;

impl Signals {
    /// Blocks these signals in this thread. An ignored one never arrives; an ignored SIGCHLD reaps
    /// children. Fails without descriptors.
    pub fn block(signals: &[Signal]) -> Result<Self, Errno> {
        let set = SigSet::from_iter(signals.iter().copied());
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let found = set.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        Ok(Self { fd, found })
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn read(&self) -> Result<Option<Signal>, Errno> {
        loop {
            match self.fd.read_signal() {
                Err(Errno::EINTR) => {}
                // Only real-time signals have no name, and the set has none of them.
                read => {
                    let number = read?.map(|info| info.ssi_signo as i32);
                    return number.map(Signal::try_from).transpose();
                }
            }
        }
    }

    /// For the child of a fork: the descriptor stays.
    pub(super) fn restore(&self) {
        let _ = self.found.thread_set_mask();
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
    use crate::deadline::Deadline;
    use crate::descriptors::readable;
    use crate::testing::alone;

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
}
