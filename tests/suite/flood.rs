//! A flood of another user's processes, in the very session and scheduling group that root's programs run in: 500 endless loops.
//! A bystander's job must begin and end all the same, by root's own decision and not by that of a guard.
//!
//! The loops have a user of their own, are the whole of a process group that `timeout` ends after a minute whatever becomes of
//! the test, and compete with nobody else on this machine as long as the kernel makes a group of a session (autogroup).

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tests::place::{Place, fast};
use tests::stage::{epilogue_args, prologue_args};

/// Who floods: nobody else on any system.
const STRANGER: u32 = 54_399;
/// How many endless loops.
const LOOPS: usize = 500;
/// Time for a prologue, seconds: the default.
const DEADLINE_S: u64 = 20;

/// A session with the flood in it, and a shell before all of it that starts what the test says.
struct Flooded {
    shell: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    loops: Pid,
}

impl Flooded {
    fn begin(gate: &Path) -> Self {
        let mut shell = Command::new("setsid")
            .args(["chrt", "--reset-on-fork", "--rr", "1", "/bin/sh"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a session");
        let to = shell.stdin.take().expect("stdin");
        let from = BufReader::new(shell.stdout.take().expect("stdout"));
        let loops = Pid::from_raw(i32::MAX);
        let mut flooded = Self {
            shell,
            to,
            from,
            loops,
        };
        let gate = gate.display();
        // All loops wait at the gate until the last is there: one that ran would keep the next from being made.
        let made = flooded.says(&format!(
            "mkfifo -m 666 {gate}; setpriv --reuid {STRANGER} --regid {STRANGER} --clear-groups --pdeathsig KILL \
             timeout -s KILL 60 /bin/sh -c 'n=0; while [ $n -lt {LOOPS} ]; do {{ read x <{gate}; while :; do :; done; }} & \
             n=$((n+1)); done; wait' & echo $!; exec 4>{gate}; sleep 1; exec 4>&-"
        ));
        flooded.loops = Pid::from_raw(made.0.trim().parse().expect("a pid"));
        flooded
    }

    /// Runs a line to its end: what it wrote, and how long it took.
    fn says(&mut self, line: &str) -> (String, Duration) {
        let began = Instant::now();
        writeln!(self.to, "{{ {line} ; }} 2>&1; echo; echo done.").expect("the shell");
        let mut text = String::new();
        loop {
            let mut line = String::new();
            let got = self.from.read_line(&mut line).expect("the shell");
            assert!(got > 0, "the shell has ended: {text}");
            if line == "done.\n" {
                return (text, began.elapsed());
            }
            text.push_str(&line);
        }
    }
}

impl Drop for Flooded {
    fn drop(&mut self) {
        let _ = killpg(self.loops, Signal::SIGKILL);
        let _ = self.shell.kill();
        let _ = self.shell.wait();
        // The next test must not find them: until the group is empty.
        let end = Instant::now() + Duration::from_secs(10);
        while killpg(self.loops, None).is_ok() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether the kernel keeps sessions apart here, so that the flood is nobody else's.
fn sessions_are_groups() -> bool {
    let enabled = fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    // In a cgroup with CPU shares of its own they are not.
    let shares = own.lines().any(|line| {
        let fields: Vec<&str> = line.splitn(3, ':').collect();
        match fields[..] {
            ["0", "", path] => Path::new(&format!("/sys/fs/cgroup{path}"))
                .join("cpu.weight")
                .exists(),
            [_, controllers, path] => controllers.split(',').any(|one| one == "cpu") && path != "/",
            _ => false,
        }
    });
    enabled.is_ok_and(|text| text.trim() == "1") && !shares
}

/// A line of ours for a shell that says how it ended.
fn line(place: &Place, program: &str, args: &[&str]) -> String {
    let args: Vec<String> = args.iter().map(|arg| format!("'{arg}'")).collect();
    let program = place.stage.program(program);
    let config = place.stage.config();
    format!(
        "env -i {} --config {} {}; echo code $?",
        program.display(),
        config.display(),
        args.join(" ")
    )
}

#[test]
fn a_bystanders_job_begins_and_ends_in_a_flood_of_another_users_processes() {
    if !sessions_are_groups() {
        return println!(
            "skipped: a flood of processes: it would be everybody's: no autogroup on this machine"
        );
    }
    let place = Place::new(fast(1), &format!("deadline_s = {DEADLINE_S}\n"));
    let mut flooded = Flooded::begin(&place.stage.path("gate"));
    let mut args = vec!["--gpus", "0"];
    args.extend(prologue_args("99.srv", "MPS=true"));
    let (said, took) = flooded.says(&line(&place, "mps-prologue", &args));
    println!("prologue amid {LOOPS} loops: {took:?}");
    // What runs as the user comes first on no CPU: that it was late is for the scheduler to try again, and no fault.
    let late = said.contains("MPS did not start") || said.contains("mpsd: no report");
    assert!(said.trim() == "code 0" || late, "{said}{took:?}");
    assert!(
        !said.contains("NVML") && !said.contains("worker") && !said.contains("drain"),
        "{said}{took:?}"
    );
    // It waits for the user's processes to end by themselves, which have their turn late: time enough for that.
    place.configure(&format!("deadline_s = {}\n", 2 * DEADLINE_S));
    let (said, took) = flooded.says(&line(&place, "mps-epilogue", &epilogue_args("99.srv")));
    println!("epilogue amid {LOOPS} loops: {took:?}");
    assert_eq!(said.trim(), "code 0", "{took:?}");
    let listed = fs::read_dir("/proc").expect("/proc").flatten();
    let alive = listed.filter(|entry| entry.metadata().is_ok_and(|it| it.uid() == STRANGER));
    assert!(alive.count() > LOOPS, "the flood had ended");
    drop(flooded);
    place.stage.assert_clean();
}
