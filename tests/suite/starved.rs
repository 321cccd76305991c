//! A user gives the job's own three processes no turn on a CPU: the idle class, nice 19, the lowest autogroup and one CPU that
//! their endless loops fill. SIGKILL waits for a turn. Root makes them ordinary again, they end, and nothing is drained.

use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tests::place::{Place, Running, fast};
use tests::stage::USER;

/// How many endless loops on the one CPU.
const LOOPS: &str = "24";

/// What starves the job, all of it in one process group that `timeout` ends whatever becomes of the test.
struct Loops(Running);

impl Loops {
    fn begin() -> Self {
        let loops =
            format!("n=0; while [ $n -lt {LOOPS} ]; do {{ while :; do :; done; }} & n=$((n+1)); done; wait");
        let child = Command::new("setsid")
            .args(["taskset", "-c", "0", "setpriv", "--reuid", USER, "--clear-groups"])
            .args(["timeout", "-s", "KILL", "40", "/bin/sh", "-c", &loops])
            .stdin(Stdio::null())
            .spawn()
            .expect("loops");
        Self(Running(child))
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        let group = Pid::from_raw(i32::try_from(self.0.0.id()).expect("pid"));
        // timeout(1) made a group of its own for the loops: its child's, which it kills when it is ended itself.
        let _ = killpg(group, Signal::SIGTERM);
        let _ = self.0.0.wait();
    }
}

fn starve(pid: u32) {
    let run = |program: &str, args: &[&str]| {
        let done = Command::new(program).args(args).stdout(Stdio::null()).status();
        assert!(done.expect(program).success(), "{program} {args:?}");
    };
    let pid = pid.to_string();
    run("taskset", &["-a", "-c", "-p", "0", &pid]);
    run("renice", &["-n", "19", "-p", &pid]);
    run("chrt", &["-a", "-i", "-p", "0", &pid]);
    // Not on a kernel without autogroups.
    let _ = std::fs::write(format!("/proc/{pid}/autogroup"), "19");
}

#[test]
fn processes_that_get_no_turn_are_ended_and_drain_nothing() {
    let place = Place::new(fast(1), "deadline_s = 8\n");
    assert_eq!(place.torque("58.srv", "MPS=true", "0").code, Some(0));
    let ours = ["mpsd", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"];
    let pids: Vec<u32> = ours.iter().flat_map(|name| place.pids(name)).collect();
    assert!(pids.len() >= 3, "{pids:?}");
    pids.into_iter().for_each(starve);
    let loops = Loops::begin();
    std::thread::sleep(Duration::from_millis(300));
    let end = place.strict_end("58.srv");
    drop(loops);
    assert_eq!(end.code, Some(0), "{end:?}");
    place.assert_not_drained("starved processes");
    place.assert_as_before("starved processes");
}
