use super::*;
use crate::sys::deadline::Deadline;
use crate::sys::guard::ask;
use crate::sys::spawn::{Identity, Spawn};
use crate::sys::testing::{STRANGER, alone, become_user, soon};
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
    let mut child = spawn.start(soon()).unwrap();
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
    // The whole test may run under nice(1).
    let nice = own().1;
    assert_eq!(
        said,
        format!("true ({policy}, {nice}) ({}, 0) (0, 0)", libc::SCHED_RR)
    );
}

/// As in a cgroup of v1 without real time of its own.
#[test]
fn where_real_time_is_not_to_be_had_nice_is_and_not_for_children() {
    let said = aside(|| {
        // The kernel: a thread that resets on fork and may not more, as RLIMIT_RTPRIO of a stranger.
        let policy = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
        raw::set_scheduler(0, policy, 0).unwrap();
        setpriority_process(None, FIRST).unwrap();
        become_user(STRANGER);
        let refused = raise();
        let ordinary = Command::new("/bin/sh")
            .args(["-c", "exec nice"])
            .output()
            .unwrap();
        let ordinary = String::from_utf8(ordinary.stdout).unwrap();
        format!("{refused:?} {:?} {}", own(), ordinary.trim())
    });
    let policy = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
    assert_eq!(said, format!("true ({policy}, -20) 0"));
}

#[test]
fn who_may_not_stays_as_it_was() {
    let said = aside(|| {
        become_user(STRANGER);
        format!("{:?} {}", raise(), own().1)
    });
    assert_eq!(said, format!("false {}", own().1));
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
    let mut child = spawn.start(soon()).unwrap();
    let pid = child.pid();
    let all = sched_getaffinity(nix::unistd::Pid::from_raw(pid)).unwrap();
    let mut one = CpuSet::new();
    one.set(
        (0..CpuSet::count())
            .find(|cpu| all.is_set(*cpu).unwrap())
            .unwrap(),
    )
    .unwrap();
    sched_setaffinity(nix::unistd::Pid::from_raw(pid), &one).unwrap();
    setpriority_process(rustix::process::Pid::from_raw(pid), 19).unwrap();
    raw::set_scheduler(pid, libc::SCHED_IDLE, 0).unwrap();
    let process = Process::find(pid).unwrap();
    let autogroup = || std::fs::read_to_string(format!("/proc/{pid}/autogroup")).ok();
    let has = process.write("autogroup", "19").is_ok();
    assert!(!has || autogroup().unwrap().trim().ends_with("nice 19"));

    normalise(&process);
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
    assert_eq!(sched_getaffinity(nix::unistd::Pid::from_raw(pid)).unwrap(), all);
    assert!(!has || autogroup().unwrap().trim().ends_with("nice 0"));

    child.kill(Deadline::after_ms(2_000));
    normalise(&process);
}
