//! What the tests of this crate and of those above it share.
#![allow(clippy::unwrap_used)]

use super::deadline::Deadline;
use super::process::{Process, State};
use super::raw;
use super::spawn::{Child, Identity, Spawn};
use nix::sys::signal::Signal;
use std::io::{StdoutLock, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Holds back other tests that fork, because their children would keep copies of this test's
/// descriptors, and the printing of results: a child would wait for ever for its copy of that lock.
pub fn alone() -> (StdoutLock<'static>, MutexGuard<'static, ()>) {
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut printing = std::io::stdout().lock();
    // A child would write what stands in the buffer as well.
    let _ = printing.flush();
    (printing, alone)
}

/// A user that owns nothing on any system.
pub const STRANGER: u32 = 54_321;

pub fn as_stranger(program: &str, words: &[&str]) -> Spawn {
    let mut spawn = Spawn::new(program);
    spawn.args = words.iter().map(Into::into).collect();
    spawn.env = vec![("PATH".into(), "/usr/bin:/bin".into())];
    spawn.identity = Some(Identity {
        uid: STRANGER,
        gid: STRANGER,
        groups: Vec::new(),
    });
    spawn
}

/// A child that does `work`, and exits with its code.
pub fn forked(work: impl FnOnce() -> u8) -> Child {
    match raw::fork().unwrap() {
        None => raw::exit_now(work()),
        Some(pid) => Child::adopt(pid),
    }
}

/// Its first thread has ended and another sleeps, so `ps` shows it as defunct.
pub fn outlived_by_a_thread(uid: u32) -> Child {
    let own = nix::unistd::getpid();
    let child = forked(|| {
        become_user(uid);
        let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
        if nix::unistd::getppid() != own {
            return 1;
        }
        std::thread::spawn(|| std::thread::sleep(Duration::from_secs(60)));
        raw::end_this_thread()
    });
    let process = Process::find(child.pid()).unwrap();
    wait_until(|| process.stat().unwrap().state == State::Defunct);
    child
}

/// Enough time for a busy machine.
pub fn soon() -> Deadline {
    Deadline::after_ms(10_000)
}

pub fn wait_until(is_so: impl Fn() -> bool) {
    let deadline = soon();
    while !is_so() {
        assert!(deadline.sleep(Duration::from_millis(1)), "it did not come");
    }
}

pub fn become_user(uid: u32) {
    let uid = rustix::process::Uid::from_raw(uid);
    rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
}
