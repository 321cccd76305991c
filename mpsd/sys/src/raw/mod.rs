//! Kernel calls that nix and rustix lack, each safe to call. The child of a fork may use all but
//! `Pointers::new` and `reset_signals_of`, which allocate.
#![allow(unsafe_code)]

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal};
use nix::unistd::{SysconfVar, sysconf};
use rustix::fs::{CWD, Mode, OFlags, RawDir, SeekFrom, openat};
use rustix::process::{Pid, PidfdFlags, WaitOptions, wait, waitpid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
};
use std::convert::Infallible;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

pub(super) fn of_rustix(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
pub enum Exit {
    #[display("exit code {_0}")]
    Code(u8),
    /// This signal ended it; a number, since real-time signals have no name.
    #[display("signal {_0}")]
    Signal(i32),
}

/// Reaps this child, or any, if it has ended. nix's `waitpid` loses the end by a real-time signal.
pub(super) fn reap(pid: Option<i32>) -> Result<Option<(i32, Exit)>, Errno> {
    let ended = match pid.and_then(Pid::from_raw) {
        Some(pid) => waitpid(Some(pid), WaitOptions::NOHANG),
        None => wait(WaitOptions::NOHANG),
    };
    let ended = ended.map_err(of_rustix)?;
    Ok(ended.map(|(pid, status)| (pid.as_raw_nonzero().get(), exit_of(status.as_raw()))))
}

fn exit_of(status: i32) -> Exit {
    match libc::WIFSIGNALED(status) {
        true => Exit::Signal(libc::WTERMSIG(status)),
        false => Exit::Code(u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(u8::MAX)),
    }
}

/// Without destructors or exit handlers: in a forked child those are copies of its parent's.
pub(super) fn exit_now(code: u8) -> ! {
    // SAFETY: `_exit` takes an integer and does not return.
    unsafe { libc::_exit(i32::from(code)) }
}

pub(super) fn fork() -> Result<Option<i32>, Errno> {
    // SAFETY: our programs have one thread. (In unit tests with several the child takes no lock but
    // glibc's allocator, which fork handlers keep usable.)
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Child => Ok(None),
        nix::unistd::ForkResult::Parent { child } => Ok(Some(child.as_raw())),
    }
}

/// [`fork`] with the child born in the cgroup v2 `cgroup`: a move waits for all CPUs (17 ms on 16).
/// Fails before Linux 5.7 (ENOSYS, E2BIG, EINVAL) and on v1 (EBADF). The child may take no lock.
pub(super) fn fork_into(cgroup: BorrowedFd<'_>) -> Result<Option<i32>, Errno> {
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    // SAFETY: `clone_args` (clone3(2)) is plain integers, for which zero is a value.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = CLONE_INTO_CGROUP;
    arguments.exit_signal = libc::SIGCHLD as u64;
    arguments.cgroup = cgroup.as_raw_fd() as u64;
    let size = size_of::<libc::clone_args>();
    // SAFETY: the structure has the kernel's layout and size. Without CLONE_VM this is fork(2).
    let pid =
        Errno::result(unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size) })?;
    Ok((pid != 0).then_some(pid as i32))
}

/// ENOSYS before Linux 5.3.
pub(super) fn pidfd_open(pid: i32) -> rustix::io::Result<OwnedFd> {
    // rustix takes none below 0.
    let pid = Pid::from_raw(pid.max(0)).ok_or(rustix::io::Errno::SRCH)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty())
}

/// Signals the process behind `pidfd`; `number` 0 only tests that it is there.
pub(super) fn pidfd_signal(pidfd: BorrowedFd<'_>, number: i32) -> Result<(), Errno> {
    let (fd, none) = (pidfd.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
    // SAFETY: the descriptor is borrowed for the call; a null siginfo means "as kill(2)".
    let done = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, number, none, 0) };
    Errno::result(done).map(drop)
}

/// How the process behind `pidfd`, which need not be a child, ended; `Ok(None)`: not waited for
/// yet. ENOTTY, EINVAL: before Linux 6.13; ESRCH: it has ended, before 6.15.
pub(super) fn pidfd_end(pidfd: BorrowedFd<'_>) -> Result<Option<Exit>, Errno> {
    /// `struct pidfd_info` (linux/pidfd.h) in its first size, which every release takes.
    #[repr(C)]
    #[derive(Default)]
    struct PidfdInfo {
        mask: u64,
        cgroup: u64,
        numbers: [u32; 11],
        exit_code: i32,
    }
    const EXIT: u64 = 1 << 3;
    const GET_INFO: u64 = 0xC040_FF0B; // PIDFD_GET_INFO, _IOWR(0xFF, 11, struct pidfd_info) of 64 bytes
    const { assert!(size_of::<PidfdInfo>() == 64) };
    let mut info = PidfdInfo {
        mask: EXIT,
        ..PidfdInfo::default()
    };
    // SAFETY: the structure has the kernel's layout and size, and lives for the call.
    Errno::result(unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO as _, &raw mut info) })?;
    let ended = info.mask & EXIT != 0;
    Ok(ended.then(|| exit_of(info.exit_code)))
}

/// Forks with signals masked: none may run our handlers in the child, or arrive before it is ready.
pub(super) fn fork_masked(
    fork: impl FnOnce() -> Result<Option<i32>, Errno>,
    work: impl FnOnce() -> Infallible,
) -> Result<i32, Errno> {
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let forked = fork().map(|child| child.unwrap_or_else(|| match work() {}));
    // Setting a valid mask has no way to fail.
    let _ = mask.thread_set_mask();
    forked
}

/// The default action for every signal, and none blocked. The C library refuses two of them.
pub(super) fn reset_signals() -> Result<(), Errno> {
    const LAST: i32 = 64;
    let default = [0u64; 4]; // struct sigaction of the kernel: handler SIG_DFL, no flags, no restorer, empty mask
    let none = std::ptr::null_mut::<libc::c_void>();
    for number in 1..=LAST {
        // SAFETY: the array is as large as the kernel's structure, and installs no handler.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, number, default.as_ptr(), none, 8) };
    }
    SigSet::empty().thread_set_mask()
}

/// Makes `command` start with no signal ignored or blocked: the standard library hands ours down.
pub fn reset_signals_of(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt as _;
    // SAFETY: `reset_signals` makes plain kernel calls, allocates nothing and takes no lock.
    unsafe { command.pre_exec(|| reset_signals().map_err(std::io::Error::from)) };
}

/// An inherited ignored SIGCHLD, for one, would lose every child's exit code.
pub(super) fn default_action(signal: Signal) {
    // SAFETY: the action runs no code of ours.
    let _ = unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) };
}

/// False: the kernel lacks the call (before Linux 5.9, RHEL 8).
fn close_range(low: u32, high: u32) -> bool {
    // SAFETY: only called in a child in which no destructor runs.
    unsafe { libc::syscall(libc::SYS_close_range, low, high, 0) == 0 }
}

/// Closes every descriptor from 3 on except the sorted `keep`, in a forked child that drops none.
pub(super) fn close_all_except(keep: &[RawFd]) {
    let mut low = 3;
    let mut done = true;
    for &kept in keep.iter().filter(|fd| **fd >= 3) {
        if kept > low {
            done = done && close_range(low as u32, kept as u32 - 1);
        }
        low = kept.max(low - 1) + 1;
    }
    if !(done && close_range(low as u32, u32::MAX)) {
        close_listed(keep);
    }
}

/// By the list in `/proc/self/fd`, or else by each number up to the limit of open files.
fn close_listed(keep: &[RawFd]) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let list = openat(CWD, c"/proc/self/fd", flags, Mode::empty());
    let own = list.as_ref().map_or(-1, AsRawFd::as_raw_fd);
    let is_unwanted = |fd: &RawFd| *fd >= 3 && *fd != own && !keep.contains(fd);
    let close = |fd: RawFd| {
        let _ = nix::unistd::close(fd);
    };
    let Ok(list) = list else {
        let limit = sysconf(SysconfVar::OPEN_MAX).ok().flatten();
        let limit = limit.unwrap_or(1 << 20).clamp(256, 1 << 20) as RawFd;
        return (3..limit).filter(is_unwanted).for_each(close);
    };
    // Closing while reading makes the list skip entries: read again until a pass closes nothing.
    let mut buffer = [MaybeUninit::uninit(); 4096];
    for _ in 0..64 {
        let mut closed = 0;
        let _ = rustix::fs::seek(&list, SeekFrom::Start(0));
        let mut entries = RawDir::new(&list, &mut buffer);
        while let Some(Ok(entry)) = entries.next() {
            let name = entry.file_name().to_str().ok();
            let number = name.and_then(|name| name.parse().ok());
            if let Some(fd) = number.filter(is_unwanted) {
                close(fd);
                closed += 1;
            }
        }
        if closed == 0 {
            break;
        }
    }
}

pub(super) fn duplicate_to(source: RawFd, target: RawFd) -> Result<(), Errno> {
    // SAFETY: for the child of a fork, where no owner of `target` is ever dropped.
    Errno::result(unsafe { libc::dup2(source, target) }).map(drop)
}

/// Copies `source` to the lowest free number from `lowest` on, closed at exec and by the caller.
pub(super) fn duplicate_above(source: RawFd, lowest: RawFd) -> Result<RawFd, Errno> {
    fcntl(borrow(source), FcntlArg::F_DUPFD_CLOEXEC(lowest))
}

pub(super) fn is_open(fd: RawFd) -> bool {
    // SAFETY: integers only.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

pub(super) fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: callers pass a descriptor that stays open meanwhile: one that they made, or 0 to 2.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

pub(super) fn drop_capabilities() -> rustix::io::Result<()> {
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    match clear_ambient_capability_set() {
        // EINVAL: the kernel has no ambient set.
        Ok(()) | Err(rustix::io::Errno::INVAL) => {}
        Err(error) => return Err(error),
    }
    set_capabilities(None, none)?;
    match capabilities(None)? == none {
        true => Ok(()),
        false => Err(rustix::io::Errno::PERM),
    }
}

/// From now on no program gets a capability from its file. Needs CAP_SETPCAP.
pub(super) fn empty_bounding_set() -> Result<(), Errno> {
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match capability_is_in_bounding_set(capability) {
            Ok(true) => remove_capability_from_bounding_set(capability).map_err(of_rustix)?,
            Ok(false) => {}
            // The kernel knows no capability of this number, nor of a higher one.
            Err(_) => break,
        }
    }
    Ok(())
}

pub(super) fn has_landlock() -> bool {
    const VERSION: u32 = 1;
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag the kernel takes no structure and answers with a number.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0, VERSION) > 0 }
}

/// For this process and all that it starts, for good (seccomp(2)). Needs no_new_privs.
pub(super) fn filter_calls(program: &[libc::sock_filter]) -> Result<(), Errno> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::EINVAL)?,
        filter: program.as_ptr().cast_mut(),
    };
    let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, 0);
    // SAFETY: the kernel reads as many instructions as the length says, and checks each.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) };
    Errno::result(done).map(drop)
}

pub(super) fn has_call_filters() -> bool {
    let (mode, action) = (libc::SECCOMP_GET_ACTION_AVAIL, libc::SECCOMP_RET_ERRNO);
    // SAFETY: the kernel reads one number that lives for the whole call.
    unsafe { libc::syscall(libc::SYS_seccomp, mode, 0, &raw const action) == 0 }
}

pub(super) fn groups_into(buffer: &mut [libc::gid_t]) -> Result<usize, Errno> {
    let room = i32::try_from(buffer.len()).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the buffer is ours and its true length is given.
    let count = Errno::result(unsafe { libc::getgroups(room, buffer.as_mut_ptr()) })?;
    usize::try_from(count).map_err(|_| Errno::EINVAL)
}

pub(super) fn exec(
    program: &std::ffi::CStr,
    arguments: &Pointers,
    environment: &Pointers,
) -> Errno {
    // SAFETY: all are NUL-terminated and kept alive by their owner, and the lists end in null.
    unsafe {
        libc::execve(
            program.as_ptr(),
            arguments.list.as_ptr(),
            environment.list.as_ptr(),
        )
    };
    Errno::last()
}

#[derive(Debug)]
pub(super) struct Pointers {
    _strings: Vec<std::ffi::CString>,
    list: Vec<*const libc::c_char>,
}

impl Pointers {
    /// The strings live as long as the list: their bytes do not move with the vector.
    pub(super) fn new(strings: Vec<std::ffi::CString>) -> Self {
        let pointers = strings.iter().map(|s| s.as_ptr());
        let list = pointers.chain([std::ptr::null()]).collect();
        let _strings = strings;
        Self { _strings, list }
    }
}

/// Sets the policy of a thread (0: this one). `priority` is 0 unless the policy is real-time.
pub(super) fn set_scheduler(thread: i32, policy: i32, priority: i32) -> Result<(), Errno> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the structure lives for the whole call and is only read.
    let done = unsafe { libc::sched_setscheduler(thread, policy, &raw const parameters) };
    Errno::result(done).map(drop)
}

/// The scheduling policy of a thread (0: the calling one), with its flag SCHED_RESET_ON_FORK.
pub(super) fn scheduler(thread: i32) -> Result<i32, Errno> {
    // SAFETY: an integer goes in, an integer comes out.
    Errno::result(unsafe { libc::sched_getscheduler(thread) })
}

pub(super) fn complain(bytes: &[u8]) {
    let _ = nix::unistd::write(borrow(2).as_fd(), bytes);
}

/// Ends the calling thread alone, though it is the first of its process.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn end_this_thread() -> ! {
    // SAFETY: takes no pointer; the forked child's copy of what the thread owns is not used again.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    exit_now(1)
}

#[cfg(test)]
pub(super) mod tests;
