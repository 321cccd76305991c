use super::*;
use crate::testing::{alone, forked, soon};

/// Waits for a vforked child that has stopped itself.
pub(crate) fn wait_in_vfork() {
    let flags = libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: CLONE_VFORK without CLONE_VM: the child has memory of its own.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if pid == 0 {
        // If SIGKILL ends the wait after all, this child would stay stopped for ever.
        let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP);
        exit_now(0);
    }
    let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid as i32), None);
}

/// Ignores signals, as a caller may have done.
pub(crate) fn ignore(signals: &[nix::sys::signal::Signal]) {
    for signal in signals {
        // SAFETY: the action runs no code of ours.
        unsafe { libc::signal(*signal as i32, libc::SIG_IGN) };
    }
}

#[test]
fn both_ways_of_closing_keep_only_what_is_named() {
    let _alone = alone();
    for closer in [close_all_except as fn(&[RawFd]), close_listed] {
        let open = [(); 120].map(|()| std::fs::File::open("/dev/null").unwrap());
        let kept = open[60].as_raw_fd();
        let mut child = forked(|| {
            closer(&[kept]);
            let left = (3..2048).filter(|fd| is_open(*fd)).count();
            u8::from(left != 1 || !is_open(kept) || !is_open(2))
        });
        assert_eq!(child.wait(soon()), Some(Exit::Code(0)));
    }
}

/// Makes system calls with one argument, the others 0: 0, or the number of the error.
pub(crate) fn calls(wanted: &[(i64, i64)]) -> Vec<i32> {
    let call = |(number, argument): &(i64, i64)| {
        // SAFETY: without a filter the kernel would refuse each call with such arguments.
        let result = unsafe { libc::syscall(*number, *argument, 0, 0, 0, 0, 0) };
        Errno::result(result).map_or_else(|errno| errno as i32, |_| 0)
    };
    wanted.iter().map(call).collect()
}
