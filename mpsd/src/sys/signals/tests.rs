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
