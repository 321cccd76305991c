//! Which process runs first: root's programs before a flood of users' processes.
//!
//! 500 endless loops of another job may run in the scheduler's cgroup. Among equals a prologue
//! waits a second for each turn, and misses its deadline. Source: sched(7),
//! `Documentation/scheduler/sched-design-CFS.rst`.

use super::process::Process;
use super::raw;
use nix::libc;
use nix::sched::{CpuSet, sched_setaffinity};
use rustix::process::{Pid, setpriority_process};
use std::sync::atomic::{AtomicBool, Ordering};

const LOWEST: i32 = 1;
const FIRST: i32 = -20;

static RAISED: AtomicBool = AtomicBool::new(false);

/// Puts this process before all ordinary ones, if possible: for root's programs with a deadline,
/// which mostly wait. Children that do root's work get it by [`hand_down`] (SCHED_RESET_ON_FORK).
pub fn raise() -> bool {
    let raised = put_first(0);
    RAISED.store(raised, Ordering::Relaxed);
    raised
}

pub(super) fn hand_down(child: i32) {
    if RAISED.load(Ordering::Relaxed) {
        let _ = put_first(child);
    }
}

/// Puts a thread before every process that is not real-time, or else gives it the best nice value
/// in its cgroup. False: neither is possible, without CAP_SYS_NICE.
fn put_first(thread: i32) -> bool {
    let reset = libc::SCHED_RESET_ON_FORK;
    if raw::set_scheduler(thread, libc::SCHED_RR | reset, LOWEST).is_ok() {
        return true;
    }
    // systemd's RestrictRealtime= also refuses this; such a unit has set it already.
    let _ = raw::set_scheduler(thread, libc::SCHED_OTHER | reset, 0);
    let inherited = raw::scheduler(thread).map_or(true, |policy| policy & reset == 0);
    !inherited && setpriority_process(Pid::from_raw(thread), FIRST).is_ok()
}

/// Makes each thread of `process` ordinary again, if possible: SCHED_OTHER, nice 0, every CPU of
/// its cpuset, an autogroup of nice 0. A user can lower all of these, and SIGKILL then waits for a
/// turn that never arrives.
pub fn normalise(process: &Process) {
    let mut everywhere = CpuSet::new();
    for cpu in 0..CpuSet::count() {
        let _ = everywhere.set(cpu);
    }
    for (thread, _) in process.living_threads().unwrap_or_default() {
        // The number comes from its process's descriptor. If the thread has ended, none is found.
        let _ = raw::set_scheduler(thread, libc::SCHED_OTHER, 0);
        let _ = setpriority_process(Pid::from_raw(thread), 0);
        let _ = sched_setaffinity(nix::unistd::Pid::from_raw(thread), &everywhere);
    }
    let _ = process.write("autogroup", "0");
}

#[cfg(test)]
#[path = "priority_tests.rs"]
mod tests;
