//! Who comes first on a CPU: root's programs before a flood of users' processes; and a process that its user starves, back
//! among the others.
//!
//! A prologue runs in its scheduler's cgroup, and 500 endless loops of another job may run there too: as one process among
//! equals it then waits a second for each turn and is still at its first steps when its time is over. Source: sched(7),
//! `Documentation/scheduler/sched-design-CFS.rst`.

use super::process::{Process, ProcessError};
use super::raw;
use nix::errno::Errno;
use nix::libc;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::sync::atomic::{AtomicBool, Ordering};

/// The lowest real-time priority: above every ordinary process, below whatever the site runs in real time.
const LOWEST: i32 = 1;
/// The nice value that weighs most.
const FIRST: i32 = -20;

/// Whether this program raised itself, for [`hand_down`].
static RAISED: AtomicBool = AtomicBool::new(false);

/// How far [`raise`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    /// Before every process that is not in real time itself, in all cgroups and autogroups.
    RealTime,
    /// Before most of its own cgroup and autogroup: real time is not to be had in this cgroup, or a filter forbids it.
    Nice,
    /// Not at all: no CAP_SYS_NICE.
    Not,
}

/// Puts this process (its calling thread) before all ordinary ones. For programs of root's with a deadline: they wait far more
/// than they compute, and the kernel leaves the others 5 % of a CPU in any case (`sched_rt_runtime_us`).
///
/// No child inherits it, whoever it runs as (SCHED_RESET_ON_FORK); those that do root's work get it by [`hand_down`]. No
/// error: who cannot have it works as before.
pub fn raise() -> Raised {
    let raised = put_first(0);
    RAISED.store(raised != Raised::Not, Ordering::Relaxed);
    raised
}

/// Puts a child before all ordinary processes, where this program is there itself: one that runs as root, and from its
/// first step on.
pub(super) fn hand_down(child: i32) {
    if RAISED.load(Ordering::Relaxed) {
        let _ = put_first(child);
    }
}

fn put_first(thread: i32) -> Raised {
    let reset = libc::SCHED_RESET_ON_FORK;
    if raw::set_scheduler(thread, libc::SCHED_RR | reset, LOWEST).is_ok() {
        return Raised::RealTime;
    }
    // Refused as well where systemd's RestrictRealtime= is in force; there the unit has set it before.
    let _ = raw::set_scheduler(thread, libc::SCHED_OTHER | reset, 0);
    let inherited = raw::scheduler(thread).map_or(true, |policy| policy & reset == 0);
    if inherited || raw::set_nice(thread, FIRST).is_err() {
        return Raised::Not;
    }
    Raised::Nice
}

/// Makes `process` ordinary again: scheduling class SCHED_OTHER, nice 0, every CPU that its cpuset has, an autogroup of nice 0,
/// for each of its threads. A user can take all of this from a process of theirs, and SIGKILL then waits for a turn that
/// does not come.
///
/// A thread that ends meanwhile is no error.
///
/// # Errors
/// The kernel refuses: no CAP_SYS_NICE.
pub fn normalise(process: &Process) -> Result<(), ProcessError> {
    let fail = |errno| ProcessError {
        act: "give CPU time to",
        pid: process.id().pid,
        errno,
    };
    let mut everywhere = CpuSet::new();
    for cpu in 0..CpuSet::count() {
        everywhere.set(cpu).map_err(fail)?;
    }
    for (thread, _) in process.living_threads()? {
        // The thread's number was read through the descriptor of its process; it may end before these three calls, and they then
        // find nobody.
        let done = raw::set_scheduler(thread, libc::SCHED_OTHER, 0)
            .and_then(|()| raw::set_nice(thread, 0))
            .and_then(|()| sched_setaffinity(Pid::from_raw(thread), &everywhere));
        match done {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => return Err(fail(errno)),
        }
    }
    match process.write("autogroup", "0") {
        // Gone, or a kernel without autogroups.
        Ok(()) | Err(Errno::ENOENT | Errno::ESRCH) => Ok(()),
        Err(errno) => Err(fail(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::deadline::Deadline;
    use crate::sys::guard::ask;
    use crate::sys::spawn::{Identity, Spawn};
    use crate::sys::testing::{STRANGER, alone};
    use nix::sched::sched_getaffinity;
    use std::process::Command;

    /// Policy with its flag, and nice value, of the calling thread.
    fn own() -> (i32, i32) {
        let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, fields) = text.rsplit_once(')').unwrap();
        // proc_pid_stat(5): field 19, and the state behind the name is field 3.
        let nice = fields.split_whitespace().nth(19 - 3).unwrap();
        (raw::scheduler(0).unwrap(), nice.parse().unwrap())
    }

    /// `work` in a child, whose end takes what it did to itself along; what it says.
    fn aside(work: impl FnOnce() -> String) -> String {
        let _alone = alone();
        let answer = ask(Deadline::after_ms(20_000), || work().into_bytes()).unwrap();
        String::from_utf8(answer).unwrap()
    }

    /// `/proc/PID/stat`'s policy (field 41, without its flag) and nice value of a child that runs as `identity`.
    fn of_a_child(identity: Option<Identity>) -> (i32, i32) {
        let mut spawn = Spawn::new("/bin/sleep");
        spawn.args = vec!["20".into()];
        spawn.identity = identity;
        let mut child = spawn.start().unwrap();
        let text = std::fs::read_to_string(format!("/proc/{}/stat", child.pid())).unwrap();
        child.kill(Deadline::after_ms(2_000));
        let (_, fields) = text.rsplit_once(')').unwrap();
        let field = |number: usize| {
            fields
                .split_whitespace()
                .nth(number - 3)
                .unwrap()
                .parse()
                .unwrap()
        };
        (field(41), field(19))
    }

    #[test]
    fn root_comes_first_with_its_own_children_and_no_users() {
        let said = aside(|| {
            let raised = raise();
            let own = own();
            let user = Identity {
                uid: STRANGER,
                gid: STRANGER,
                groups: Vec::new(),
            };
            format!(
                "{raised:?} {own:?} {:?} {:?}",
                of_a_child(None),
                of_a_child(Some(user))
            )
        });
        let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
        assert_eq!(
            said,
            format!("RealTime ({policy}, 0) ({}, 0) (0, 0)", libc::SCHED_RR)
        );
    }

    /// As in a cgroup of v1 without real time of its own.
    #[test]
    fn where_real_time_is_not_to_be_had_nice_is_and_not_for_children() {
        let said = aside(|| {
            // The kernel: a thread that resets on fork and may not more, as RLIMIT_RTPRIO of a stranger.
            let policy = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
            raw::set_scheduler(0, policy, 0).unwrap();
            raw::set_nice(0, FIRST).unwrap();
            raw::set_user(STRANGER).unwrap();
            let refused = raise();
            let ordinary = Command::new("/bin/sh")
                .args(["-c", "exec nice"])
                .output()
                .unwrap();
            let ordinary = String::from_utf8(ordinary.stdout).unwrap();
            format!("{refused:?} {:?} {}", own(), ordinary.trim())
        });
        let policy = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
        assert_eq!(said, format!("Nice ({policy}, -20) 0"));
    }

    #[test]
    fn who_may_not_stays_as_it_was() {
        let said = aside(|| {
            raw::set_user(STRANGER).unwrap();
            format!("{:?} {}", raise(), own().1)
        });
        assert_eq!(said, "Not 0");
    }

    #[test]
    fn a_process_that_its_user_starves_is_ordinary_again() {
        let _alone = alone();
        let mut spawn = Spawn::new("/bin/sleep");
        spawn.args = vec!["20".into()];
        spawn.session = true;
        spawn.identity = Some(Identity {
            uid: STRANGER,
            gid: STRANGER,
            groups: Vec::new(),
        });
        let mut child = spawn.start().unwrap();
        let pid = child.pid();
        let all = sched_getaffinity(Pid::from_raw(pid)).unwrap();
        let mut one = CpuSet::new();
        one.set(
            (0..CpuSet::count())
                .find(|cpu| all.is_set(*cpu).unwrap())
                .unwrap(),
        )
        .unwrap();
        sched_setaffinity(Pid::from_raw(pid), &one).unwrap();
        raw::set_nice(pid, 19).unwrap();
        raw::set_scheduler(pid, libc::SCHED_IDLE, 0).unwrap();
        let process = Process::find(pid).unwrap().unwrap();
        let autogroup = || std::fs::read_to_string(format!("/proc/{pid}/autogroup")).ok();
        let has = process.write("autogroup", "19").is_ok();
        assert!(!has || autogroup().unwrap().trim().ends_with("nice 19"));

        normalise(&process).unwrap();
        assert_eq!(raw::scheduler(pid).unwrap(), libc::SCHED_OTHER);
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let nice = stat
            .rsplit_once(')')
            .unwrap()
            .1
            .split_whitespace()
            .nth(16)
            .unwrap();
        assert_eq!(nice, "0");
        assert_eq!(sched_getaffinity(Pid::from_raw(pid)).unwrap(), all);
        assert!(!has || autogroup().unwrap().trim().ends_with("nice 0"));

        child.kill(Deadline::after_ms(2_000));
        normalise(&process).unwrap();
    }
}
