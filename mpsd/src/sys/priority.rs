//! Who comes first on a CPU: root's programs before a flood of users' processes; and a process that its user starves, back
//! among the others.
//!
//! A prologue runs in its scheduler's cgroup, and 500 endless loops of another job may run there too: as one process among
//! equals it then waits a second for each turn and is still at its first steps when its time is over. Source: sched(7),
//! `Documentation/scheduler/sched-design-CFS.rst`.

use super::process::Process;
use super::raw;
use nix::libc;
use nix::sched::{CpuSet, sched_setaffinity};
use rustix::process::{Pid, setpriority_process};
use std::sync::atomic::{AtomicBool, Ordering};

/// The lowest real-time priority: above every ordinary process, below whatever the site runs in real time.
const LOWEST: i32 = 1;
/// The nice value that weighs most.
const FIRST: i32 = -20;

/// Whether this program raised itself, for [`hand_down`].
static RAISED: AtomicBool = AtomicBool::new(false);

/// Puts this process (its calling thread) before all ordinary ones. For programs of root's with a deadline: they wait far more
/// than they compute, and the kernel leaves the others 5 % of a CPU in any case (`sched_rt_runtime_us`).
///
/// No child inherits it, whoever it runs as (SCHED_RESET_ON_FORK); those that do root's work get it by [`hand_down`]. No
/// error: who cannot have it works as before.
///
/// False where it is not to be had at all.
pub fn raise() -> bool {
    let raised = put_first(0);
    RAISED.store(raised, Ordering::Relaxed);
    raised
}

/// Puts a child before all ordinary processes, where this program is there itself: one that runs as root, and from its
/// first step on.
pub(super) fn hand_down(child: i32) {
    if RAISED.load(Ordering::Relaxed) {
        let _ = put_first(child);
    }
}

/// Puts a thread before every process that is not in real time itself, in all cgroups and autogroups; where real time is not
/// to be had in this cgroup, or a filter forbids it, before most of its own cgroup and autogroup. False: neither is to be had,
/// without CAP_SYS_NICE.
fn put_first(thread: i32) -> bool {
    let reset = libc::SCHED_RESET_ON_FORK;
    if raw::set_scheduler(thread, libc::SCHED_RR | reset, LOWEST).is_ok() {
        return true;
    }
    // Refused as well where systemd's RestrictRealtime= is in force; there the unit has set it before.
    let _ = raw::set_scheduler(thread, libc::SCHED_OTHER | reset, 0);
    let inherited = raw::scheduler(thread).map_or(true, |policy| policy & reset == 0);
    !inherited && setpriority_process(Pid::from_raw(thread), FIRST).is_ok()
}

/// Makes `process` ordinary again: scheduling class SCHED_OTHER, nice 0, every CPU that its cpuset has, an autogroup of nice 0,
/// for each of its threads. A user can take all of this from a process of theirs, and SIGKILL then waits for a turn that
/// does not come.
///
/// A thread that ends meanwhile, a kernel without autogroups, and a caller without CAP_SYS_NICE are no errors: what is to be
/// had is had.
pub fn normalise(process: &Process) {
    let mut everywhere = CpuSet::new();
    for cpu in 0..CpuSet::count() {
        let _ = everywhere.set(cpu);
    }
    for (thread, _) in process.living_threads().unwrap_or_default() {
        // The thread's number was read through the descriptor of its process; it may end before these three calls, and they then
        // find nobody.
        let _ = raw::set_scheduler(thread, libc::SCHED_OTHER, 0);
        let _ = setpriority_process(Pid::from_raw(thread), 0);
        let _ = sched_setaffinity(nix::unistd::Pid::from_raw(thread), &everywhere);
    }
    let _ = process.write("autogroup", "0");
}

#[cfg(test)]
#[path = "priority_tests.rs"]
mod tests;
