//! A client of a job with a shared MPS notices nothing while other jobs of its user join and leave.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::place::{Place, Running, eventually, fast, kill};
use tests::stage::THREE;

const JOB: &str = "870.srv";
const OTHERS: usize = 50;
/// This many jobs also have a client, which ends when they leave.
const WITH_CLIENT: usize = 5;
/// The double needs far less than a millisecond for a kernel.
const PAUSE_MS: &str = "50";
/// How many joins and leaves may fall on a moment in which this machine runs neither the client nor
/// the server. A pause of their own would show in most of them.
const BY_CHANCE: usize = 5;

/// Gives a process priority over all others, so that a pause is the server's.
fn hasten(pid: u32) {
    let mut renice = Command::new("renice");
    renice
        .args(["-n", "-20", "-p", &pid.to_string()])
        .stdout(Stdio::null());
    assert!(renice.status().expect("renice").success());
}

#[test]
fn a_client_sees_no_error_and_no_pause_while_fifty_jobs_join_and_leave() {
    let place = Place::new(fast(1), "deadline_s = 20\nshared_gpus = true\n");
    let begin = |job: &str| drop(place.torque_on_gpu_0(job, "MPS=true").ok());
    begin(JOB);
    let told = place.path("slow");
    let slow = || fs::read_to_string(&told).map_or(0, |text| text.lines().count());
    let args = ["--hold", "600", "--busy", "--tell-slow", PAUSE_MS];
    let mut command = place.exec_command(&args, &[("PBS_JOBID", JOB)]);
    let out = File::create(&told).expect("a file");
    let mut client = Running::start(command.stdin(Stdio::null()).stdout(out));
    eventually("the client writes its record", || slow() > 0);
    let server = place.pids(THREE[2])[0];
    [client.pid(), server].into_iter().for_each(hasten);
    let before = slow();
    for number in 0..OTHERS {
        let other = format!("{}.srv", 900 + number);
        begin(&other);
        let ended = number
            .is_multiple_of(OTHERS / WITH_CLIENT)
            .then(|| place.sharer(&other));
        place.end(&other);
        assert!(ended.is_none_or(|mut client| client.wait().is_some_and(|code| code != 0)));
    }
    assert!(!client.has_ended(), "{:?}", fs::read_to_string(&told));
    let during = slow() - before;
    // This proves that the client would see a pause.
    kill(server, Signal::SIGSTOP);
    std::thread::sleep(Duration::from_millis(200));
    kill(server, Signal::SIGCONT);
    eventually("it notices a server that stands still", || {
        slow() > before + during
    });
    assert!(during < BY_CHANCE, "{during} pauses in {OTHERS} joins");
    assert_eq!(place.pids(THREE[2]), [server], "another server");
    drop(client);
    place.assert_ends_clean(JOB, "fifty jobs that joined and left");
}
