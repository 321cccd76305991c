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

/// One signal received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its number.
    pub number: i32,
    /// Who sent it; 0 for the kernel.
    pub pid: i32,
    /// As whom.
    pub uid: u32,
}

impl Received {
    /// The signal, unless it is a real-time one.
    pub fn signal(self) -> Option<Signal> {
        Signal::try_from(self.number).ok()
    }
}

/// The program of `command` begins with the default action for every signal and none blocked, whatever this process
/// blocks or ignores: the standard library hands both down, and the vendor's programs then cannot be told to end.
pub fn start_fresh(command: &mut std::process::Command) {
    super::raw::reset_signals_of(command);
}

impl Signals {
    /// Blocks these signals in this thread (in all, where it is the first and only one). A signal that is ignored
    /// stays ignored and never arrives; for SIGCHLD that would also reap children: see [`default_action`].
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
    pub fn read(&self) -> Result<Option<Received>, Errno> {
        loop {
            match self.fd.read_signal() {
                Ok(info) => {
                    return Ok(info.map(|info| Received {
                        number: i32::try_from(info.ssi_signo).unwrap_or(0),
                        pid: i32::try_from(info.ssi_pid).unwrap_or(0),
                        uid: info.ssi_uid,
                    }));
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

/// Gives signals their default action, whatever was inherited: SIGCHLD ignored by the caller would lose every child's
/// exit code.
///
/// # Errors
/// EINVAL for SIGKILL and SIGSTOP.
pub fn default_action(signals: &[Signal]) -> Result<(), Errno> {
    signals
        .iter()
        .try_for_each(|signal| super::raw::set_action(*signal, super::raw::Action::Default))
}

/// Ignores signals: SIGPIPE, and SIGHUP in a process that is to outlive a terminal.
///
/// # Errors
/// EINVAL for SIGKILL and SIGSTOP.
pub fn ignore(signals: &[Signal]) -> Result<(), Errno> {
    signals
        .iter()
        .try_for_each(|signal| super::raw::set_action(*signal, super::raw::Action::Ignore))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::deadline::Deadline;
    use crate::sys::descriptors::readable;
    use crate::sys::testing::alone;

    #[test]
    fn a_blocked_signal_is_read_with_its_sender_and_the_mask_comes_back() {
        let _alone = alone();
        let before = SigSet::thread_get_mask().unwrap();
        let signals = Signals::block(&[Signal::SIGUSR1]).unwrap();
        assert_eq!(signals.read().unwrap(), None);
        nix::sys::signal::raise(Signal::SIGUSR1).unwrap();
        assert!(readable(signals.as_fd(), Deadline::after_ms(5000)).unwrap());
        let received = signals.read().unwrap().unwrap();
        assert_eq!(received.signal(), Some(Signal::SIGUSR1));
        assert_eq!(received.pid, nix::unistd::getpid().as_raw());
        assert_eq!(signals.read().unwrap(), None);
        drop(signals);
        assert_eq!(SigSet::thread_get_mask().unwrap(), before);
        let nameless = Received {
            number: 40,
            pid: 1,
            uid: 0,
        };
        assert_eq!(nameless.signal(), None);
    }

    #[test]
    fn actions_that_cannot_be_set_are_refused() {
        assert_eq!(ignore(&[Signal::SIGKILL]), Err(Errno::EINVAL));
        assert_eq!(default_action(&[Signal::SIGCHLD]), Ok(()));
    }
}
