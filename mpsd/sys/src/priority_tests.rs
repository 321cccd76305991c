use super::*;
use crate::deadline::Deadline;
use crate::guard::ask;
use crate::spawn::Spawn;
use crate::testing::{STRANGER, alone, as_stranger, become_user, soon};
use nix::sched::sched_getaffinity;
use std::process::Command;

/// Policy with its flag, and nice value, of the calling thread.
fn own() -> (i32, i32) {
    (raw::scheduler(0).unwrap(), field("thread-self", 19))
}

/// What `work` says, in a child of its own.
fn aside(work: impl FnOnce() -> String) -> String {
    let _alone = alone();
    let answer = ask(Deadline::after_ms(20_000), || work().into_bytes()).unwrap();
    String::from_utf8(answer).unwrap()
}

/// Of `/proc/PID/stat` (proc_pid_stat(5)): 41 is the policy without its flag, 19 the nice value.
fn field(pid: &str, number: usize) -> i32 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The state behind the name is field 3.
    let (_, fields) = text.rsplit_once(')').unwrap();
    let value = fields.split_whitespace().nth(number - 3).unwrap();
    value.parse().unwrap()
}

/// Policy and nice value of a child.
fn of_child(program: Spawn) -> (i32, i32) {
    let mut child = program.start(soon()).unwrap();
    let pid = child.pid().to_string();
    let found = (field(&pid, 41), field(&pid, 19));
    child.kill(Deadline::after_ms(2_000));
    found
}

#[test]
fn root_runs_first_with_its_own_children_and_not_with_users() {
    let said = aside(|| {
        let raised = raise();
        let mut ours = Spawn::new("/bin/sleep");
        ours.args = vec!["20".into()];
        let users = as_stranger("/bin/sleep", &["20"]);
        let all = [own(), of_child(ours), of_child(users)];
        format!("{raised:?} {all:?}")
    });
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    // The whole test may run under nice(1).
    let nice = own().1;
    let all = [(policy, nice), (libc::SCHED_RR, 0), (0, 0)];
    assert_eq!(said, format!("true {all:?}"));
}

/// As in a cgroup of v1 without real time of its own.
#[test]
fn without_real_time_there_is_nice_and_not_for_children() {
    let said = aside(|| {
        // This thread resets on fork, and a stranger's RLIMIT_RTPRIO allows it no more than that.
        let policy = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
        raw::set_scheduler(0, policy, 0).unwrap();
        setpriority_process(None, FIRST).unwrap();
        become_user(STRANGER);
        let raised = raise();
        let ordinary = Command::new("/usr/bin/nice").output().unwrap();
        let ordinary = String::from_utf8(ordinary.stdout).unwrap();
        format!("{raised:?} {:?} {}", own(), ordinary.trim())
    });
    let policy = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
    assert_eq!(said, format!("true ({policy}, -20) 0"));
}

#[test]
fn a_process_without_the_right_stays_as_it_was() {
    let said = aside(|| {
        become_user(STRANGER);
        format!("{:?} {}", raise(), own().1)
    });
    assert_eq!(said, format!("false {}", own().1));
}

#[test]
fn a_process_that_its_user_starves_is_ordinary_again() {
    let _alone = alone();
    let mut spawn = as_stranger("/bin/sleep", &["20"]);
    spawn.session = true;
    let mut child = spawn.start(soon()).unwrap();
    let pid = nix::unistd::Pid::from_raw(child.pid());
    let all = sched_getaffinity(pid).unwrap();
    let first = (0..CpuSet::count()).find(|cpu| all.is_set(*cpu).unwrap());
    let mut one = CpuSet::new();
    one.set(first.unwrap()).unwrap();
    sched_setaffinity(pid, &one).unwrap();
    setpriority_process(Pid::from_raw(child.pid()), 19).unwrap();
    raw::set_scheduler(child.pid(), libc::SCHED_IDLE, 0).unwrap();
    let process = Process::find(child.pid()).unwrap();
    let autogroup = |nice: &str| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/autogroup"));
        text.unwrap().trim().ends_with(nice)
    };
    let has = process.write("autogroup", "19").is_ok();
    assert!(!has || autogroup("nice 19"));

    normalise(&process);
    assert_eq!(raw::scheduler(child.pid()).unwrap(), libc::SCHED_OTHER);
    assert_eq!(field(&pid.to_string(), 19), 0);
    assert_eq!(sched_getaffinity(pid).unwrap(), all);
    assert!(!has || autogroup("nice 0"));

    child.kill(Deadline::after_ms(2_000));
    normalise(&process);
}
