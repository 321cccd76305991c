//! Users who occupy every CPU, against another user's job or their own. Jobs begin and end, and
//! nothing is drained.

use std::fs::{self, DirEntry};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tests::double::look::wait_until;
use tests::place::{Place, Running, fast};
use tests::stage::{THREE, USER, epilogue_args, prologue_on_gpu_0};

/// The user of the flood; no program uses this number.
const STRANGER: u32 = 54_399;
const LOOPS: usize = 500;
/// Time for a prologue, seconds: the default.
const DEADLINE_S: u64 = 20;

/// A session with the flood, and a shell that began before it and runs the test's commands.
/// `timeout` ends the loops, a process group, after three minutes. With autogroup they do not
/// compete with other sessions.
struct Flood {
    _shell: Running,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    loops: Pid,
}

impl Flood {
    fn begin(gate: &Path) -> Self {
        let mut command = Command::new("setsid");
        command.args(["chrt", "--reset-on-fork", "--rr", "1", "/bin/sh"]);
        let mut shell = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut flood = Self {
            to: shell.0.stdin.take().expect("stdin"),
            from: BufReader::new(shell.0.stdout.take().expect("stdout")),
            _shell: shell,
            loops: Pid::from_raw(i32::MAX),
        };
        let gate = gate.display();
        // All loops wait at the gate until the last is made: a running loop would keep the next
        // from being made. Each inherits the open gate, so that its end reaches a loop that has not
        // read yet.
        let made = flood.run(&format!(
            "mkfifo -m 666 {gate} {gate}.made; exec 4<>{gate}; \
             setpriv --reuid {STRANGER} --regid {STRANGER} --clear-groups --pdeathsig KILL timeout -s KILL 180 \
             /bin/sh -c 'exec 5<{gate}; n=0; while [ $n -lt {LOOPS} ]; do {{ read x <&5; while :; do :; done; }} & n=$((n+1)); done; \
             echo >{gate}.made; wait' 4>&- & echo $!; read x <{gate}.made; exec 4>&-"
        ));
        flood.loops = Pid::from_raw(made.0.trim().parse().expect("a pid"));
        flood
    }

    fn run(&mut self, line: &str) -> (String, Duration) {
        let began = Instant::now();
        writeln!(self.to, "{{ {line} ; }} 2>&1; echo; echo done.").expect("the shell");
        let mut text = String::new();
        while !text.ends_with("\ndone.\n") {
            let got = self.from.read_line(&mut text).expect("the shell");
            assert!(got > 0, "the shell has ended: {text}");
        }
        (text.replace("\ndone.\n", ""), began.elapsed())
    }

    fn program(&mut self, place: &Place, name: &str, args: &[&str]) -> (String, Duration) {
        let args: String = args.iter().map(|arg| format!(" '{arg}'")).collect();
        let (program, config) = (place.program(name), place.config());
        let (program, config) = (program.display(), config.display());
        self.run(&format!(
            "env -i {program} --config {config}{args}; echo code $?"
        ))
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        let _ = killpg(self.loops, Signal::SIGKILL);
        // The next test must not meet them.
        wait_until(Duration::from_secs(10), || {
            killpg(self.loops, None).is_err()
        });
    }
}

/// Whether the kernel separates sessions here, so that the flood disturbs no other test.
fn sessions_are_groups() -> bool {
    let enabled = fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    // In a cgroup with CPU shares of its own it does not.
    let has_shares = |line: &str| {
        let fields: Vec<&str> = line.splitn(3, ':').collect();
        match fields[..] {
            ["0", "", path] => Path::new(&format!("/sys/fs/cgroup{path}/cpu.weight")).exists(),
            [_, controllers, path] => controllers.split(',').any(|one| one == "cpu") && path != "/",
            _ => false,
        }
    };
    enabled.is_ok_and(|text| text.trim() == "1") && !own.lines().any(has_shares)
}

#[test]
fn a_bystanders_job_begins_and_ends_in_a_flood_of_another_users_processes() {
    if !sessions_are_groups() {
        return println!(
            "skipped: without autogroups the flood would disturb every test on this machine"
        );
    }
    let place = Place::new(fast(1), &format!("deadline_s = {DEADLINE_S}\n"));
    let mut flood = Flood::begin(&place.path("gate"));
    let args = prologue_on_gpu_0("99.srv", "MPS=true,MPS_REPORT=off");
    let (said, took) = flood.program(&place, "mps-prologue", &args);
    println!("prologue amid {LOOPS} loops: {took:?}");
    // The user's own processes have no priority. If they were late, the scheduler tries again; that
    // is no fault.
    let late = said.contains("MPS did not start") || said.contains("mpsd: no report");
    assert!(said.trim() == "code 0" || late, "{said}{took:?}");
    for fault in ["NVML", "worker", "drain"] {
        assert!(!said.contains(fault), "{said}{took:?}");
    }
    // The epilogue waits for the user's processes to end, and these get their turn late.
    place.configure(&format!("deadline_s = {}\n", 2 * DEADLINE_S));
    let (said, took) = flood.program(&place, "mps-epilogue", &epilogue_args("99.srv"));
    println!("epilogue amid {LOOPS} loops: {took:?}");
    assert_eq!(said.trim(), "code 0", "{took:?}");
    let listed = fs::read_dir("/proc").expect("/proc").flatten();
    let of_stranger = listed.filter(|entry| entry.metadata().is_ok_and(|it| it.uid() == STRANGER));
    let runs = |entry: &DirEntry| {
        fs::read_to_string(entry.path().join("stat")).is_ok_and(|stat| stat.contains(") R "))
    };
    let running = of_stranger.filter(runs).count();
    // A few may wait for a page of memory, and their shell may be running.
    assert!(running > LOOPS * 9 / 10, "{running} of the flood run");
    drop(flood);
    place.assert_as_before("a flood");
}

struct Loops(Running);

impl Loops {
    fn begin() -> Self {
        let loops =
            "n=0; while [ $n -lt 24 ]; do { while :; do :; done; } & n=$((n+1)); done; wait";
        let mut command = Command::new("setsid");
        command.args([
            "taskset",
            "-c",
            "0",
            "setpriv",
            "--reuid",
            USER,
            "--clear-groups",
        ]);
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
        let done = Command::new(program)
            .args(args)
            .stdout(Stdio::null())
            .status();
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
    let place = Place::with_job(fast(1), "deadline_s = 8\n", "58.srv", "MPS=true", "0");
    let pids: Vec<u32> = THREE.iter().flat_map(|name| place.pids(name)).collect();
    assert!(pids.len() >= 3, "{pids:?}");
    pids.into_iter().for_each(starve);
    let loops = Loops::begin();
    std::thread::sleep(Duration::from_millis(300));
    let end = place.strict_end("58.srv");
    drop(loops);
    end.ok();
    place.assert_as_before("starved processes");
}
