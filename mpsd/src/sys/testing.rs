//! What the tests of this layer share.

use super::deadline::Deadline;
use std::io::{StdoutLock, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Holds back the other tests that fork: a child made meanwhile would keep copies of this test's descriptors. And whoever prints the
/// results: a child made meanwhile would wait for ever for its copy of that lock.
pub(super) fn alone() -> (StdoutLock<'static>, MutexGuard<'static, ()>) {
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut printing = std::io::stdout().lock();
    // A child would write what stands in the buffer as well.
    let _ = printing.flush();
    (printing, alone)
}

/// A user that owns nothing on any system.
pub(super) const STRANGER: u32 = 54_321;

/// Time for what a busy machine needs a while for.
pub(super) fn soon() -> Deadline {
    Deadline::after_ms(10_000)
}

/// Makes the calling thread a process of this user's.
pub(super) fn become_user(uid: u32) {
    let uid = rustix::process::Uid::from_raw(uid);
    rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
}
