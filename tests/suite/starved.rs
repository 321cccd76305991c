//! Users who occupy every CPU, against the end of their own job.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tests::node_bed::{NodeBed, Running, fast};
use tests::run::{THREE, USER};

struct Loops(Running);

impl Loops {
    fn begin() -> Self {
        let loops =
            "n=0; while [ $n -lt 24 ]; do { while :; do :; done; } & n=$((n+1)); done; wait";
        let mut command = Command::new("setsid");
        command.args(["taskset", "-c", "0", "setpriv", "--reuid", USER]);
        command.args(["--clear-groups"]);
        command.args(["timeout", "-s", "KILL", "40", "/bin/sh", "-c", loops]);
        Self(Running::start(command.stdin(Stdio::null())))
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        let group = Pid::from_raw(i32::try_from(self.0.pid()).expect("pid"));
        // timeout(1) made a process group for the loops, which it kills when it is ended.
        let _ = killpg(group, Signal::SIGTERM);
        let _ = self.0.0.wait();
    }
}

/// The idle class, nice 19, the lowest autogroup, and one CPU. There even SIGKILL waits for a turn.
fn starve(pid: u32) {
    let run = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        let done = command.args(args).stdout(Stdio::null()).status();
        assert!(done.expect(program).success(), "{program} {args:?}");
    };
    let pid = pid.to_string();
    run("taskset", &["-a", "-c", "-p", "0", &pid]);
    run("renice", &["-n", "19", "-p", &pid]);
    run("chrt", &["-a", "-i", "-p", "0", &pid]);
    // Not on a kernel without autogroups.
    let _ = fs::write(format!("/proc/{pid}/autogroup"), "19");
}

#[test]
fn processes_that_get_no_turn_are_ended_and_drain_nothing() {
    let bed = NodeBed::with_job(fast(1), "deadline_s = 8\n", "58.srv", "MPS=true", "0");
    let pids: Vec<u32> = THREE.iter().flat_map(|name| bed.pids(name)).collect();
    assert!(pids.len() >= 3, "{pids:?}");
    pids.into_iter().for_each(starve);
    let loops = Loops::begin();
    std::thread::sleep(Duration::from_millis(300));
    let end = bed.strict_end("58.srv");
    drop(loops);
    end.ok();
    bed.assert_as_before("starved processes");
}
