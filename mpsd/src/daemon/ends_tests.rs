use super::*;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::process::{Child, Command, Stdio};

fn child(line: &str) -> Child {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]).stdin(Stdio::piped());
    command.spawn().expect("sh")
}

fn pid(child: &Child) -> i32 {
    child.id().cast_signed()
}

/// How many descriptors wake within `ms`.
fn woken(ends: &Ends, ms: u16) -> i32 {
    let fds = ends.descriptors();
    let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::empty())).collect();
    poll(&mut fds, PollTimeout::from(ms)).expect("poll")
}

/// Where the kernel does not tell, nobody is held, and there is nothing to try.
fn tells() -> bool {
    let tells = ProcessWatch::of(std::process::id().cast_signed()).is_some();
    if !tells {
        println!("not tried here: this kernel tells of its own children alone");
    }
    tells
}

#[test]
fn one_that_a_signal_ended_is_told_once_it_has_been_waited_for_and_one_that_ended_is_not() {
    let mut ends = Ends::default();
    let (mut victim, mut well, mut alive) = (child("read x"), child("read x; exit 137"), child("read x"));
    for one in [&victim, &well, &alive] {
        ends.take(&Event::NewClient(pid(one)));
        ends.take(&Event::Active(pid(one)));
    }
    if !tells() {
        assert_eq!(ends.descriptors().count(), 0);
        return;
    }
    assert_eq!((ends.descriptors().count(), woken(&ends, 50)), (3, 0), "all live");
    let killed = pid(&victim);
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(killed),
        nix::sys::signal::Signal::SIGKILL,
    )
    .expect("kill");
    drop(well.stdin.take());
    assert_eq!(woken(&ends, 100), 0, "a zombie wakes nobody, and is not told");
    assert_eq!(ends.killed(), []);
    victim.wait().expect("wait");
    well.wait().expect("wait");
    assert_eq!(woken(&ends, 5000), 2);
    let signal = 9;
    assert_eq!(ends.killed(), [Killed { pid: killed, signal }]);
    assert_eq!((ends.killed(), ends.descriptors().count()), (vec![], 1), "once");
    drop(alive.stdin.take());
    alive.wait().expect("wait");
}

#[test]
fn no_process_and_too_many_are_not_held() {
    let mut ends = Ends::default();
    for pid in [0, -1, i32::MAX] {
        ends.take(&Event::NewClient(pid));
    }
    ends.take(&Event::Left(std::process::id().cast_signed()));
    assert_eq!(ends.descriptors().count(), 0);
    let mut child = child("read x");
    let mut gone = child.id().cast_signed();
    drop(child.stdin.take());
    child.wait().expect("wait");
    ends.take(&Event::NewClient(std::mem::take(&mut gone)));
    assert_eq!(ends.descriptors().count(), 0, "it has gone");
}
