//! `mpsctl pack` as an ordinary user in a job: what runs, what is logged, and that no process is
//! left behind.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::child::Running;
use tests::double::look;
use tests::node_bed::{eventually, kill};
use tests::run::finish;

use crate::bench::Bench;

#[derive(Debug, Clone, PartialEq)]
struct Logged {
    seq: u64,
    code: i32,
    signal: i32,
    command: String,
}

fn bench(gpus: usize) -> Bench {
    Bench::new("pack", gpus, "", "MPS=true")
}

impl Bench {
    fn file(&self, lines: &str) -> String {
        let file = self.work("commands");
        fs::write(&file, lines).expect("commands");
        file.display().to_string()
    }

    /// The lines of the log, by the pattern with which GNU parallel checks it:
    /// `\d+\s+[^\s]+\s+([-0-9.]+\s+){6}`.
    fn log(&self, name: &str) -> Vec<Logged> {
        let text = fs::read_to_string(self.work("commands.results").join(name)).unwrap_or_default();
        let mut lines = text.lines();
        let header = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand";
        assert_eq!(lines.next(), Some(header), "{text}");
        let line = |line: &str| {
            let fields: Vec<&str> = line.splitn(9, '\t').collect();
            let number = |at: usize| {
                let number = fields[at].trim().parse::<f64>();
                number.unwrap_or_else(|_| panic!("{line}"))
            };
            assert!(!fields[1].is_empty() && !fields[1].contains(' '), "{line}");
            assert!((2..8).map(number).all(f64::is_finite), "{line}");
            Logged {
                seq: number(0) as u64,
                code: number(6) as i32,
                signal: number(7) as i32,
                command: fields[8].to_owned(),
            }
        };
        lines.map(line).collect()
    }

    fn ends(&self) -> BTreeMap<u64, (i32, i32)> {
        let log = self.log("joblog");
        let end = |line: &Logged| (line.seq, (line.code, line.signal));
        let ends: BTreeMap<_, _> = log.iter().map(end).collect();
        assert_eq!(ends.len(), log.len(), "each once: {log:?}");
        ends
    }

    fn out(&self, seq: u64) -> String {
        fs::read_to_string(self.work(&format!("commands.results/{seq}.out"))).unwrap_or_default()
    }

    fn client(&self, options: &str) -> String {
        let (client, node) = (self.bed.node.client(), self.bed.node.dir());
        format!("{} --node {} {options}", client.display(), node.display())
    }

    /// A script that notes its begin and succeeds. A number that ends with 7 fails until it is
    /// mended. `exec` replaces the line's shell, which SIGTERM would end while the script succeeds.
    fn noting(&self, count: u64) -> String {
        let work = self.bed.path("work");
        let text = format!(
            "cd {}\necho x >>$1.begun\nsleep 0.2\ncase $1 in *7) [ -e mended ] || exit 3 ;; esac\n\
             trap '' TERM\necho x >>$1.done",
            work.display()
        );
        let noting = self.script("noting", &text);
        let line = |seq: u64| format!("exec {noting} {seq}\n");
        self.file(&(1..=count).map(line).collect::<String>())
    }

    fn lines_of(&self, name: &str) -> usize {
        let text = fs::read_to_string(self.work(name));
        text.unwrap_or_default().lines().count()
    }
}

#[test]
fn each_end_is_logged_as_gnu_parallel_logs_it_and_failures_are_the_exit_code() {
    let bench = bench(1);
    let file = bench.file(
        "# a comment\necho out; echo err >&2\n\nexit 3\n  kill -9 $$\nsleep 60\necho a\tb $PARALLEL_SEQ\n",
    );
    let ran = bench.run(&["-n", "2", "--timeout", "1.5", &file]).exits(3);
    ran.prints("5 commands: 2 succeeded, 3 failed (2, 3, 4)")
        .complains("command 2 failed: exit code 3: exit 3");
    let ends = (1..).zip([(0, 0), (3, 0), (0, 9), (-1, 15), (0, 0)]);
    assert_eq!(bench.ends(), ends.collect());
    assert_eq!([1, 5].map(|seq| bench.out(seq)), ["out\nerr\n", "a b 5\n"]);
    let of_five = bench.log("joblog").into_iter().find(|line| line.seq == 5);
    assert_eq!(of_five.expect("5").command, "echo a\tb $PARALLEL_SEQ");
    let none = bench.file("# nothing\n");
    let wrong = bench.run(&["--json", "--thread", "auto", &none]).exits(255);
    wrong.complains("'--threads'");
    assert_eq!(wrong.json()["exit_status"], 255);
    let empty = bench.run(&[&none]).exits(255);
    empty.complains("it has no command");
    let many = bench.file(&"exit 1\n".repeat(120));
    let mut outside = bench.command(&[&many]);
    let outside = finish(outside.env_remove("PBS_JOBID")).exits(255);
    outside.complains("this is no job");
    bench.run(&["-n", "32", &many]).exits(101);
    bench.assert_none_left(Duration::ZERO);
}

#[test]
fn a_command_that_fails_runs_again_as_often_as_allowed() {
    let bench = bench(1);
    let file = bench.file("echo x >>tries; [ $(wc -l <tries) -ge 3 ]\necho y >>others; false\n");
    bench.run(&["-n", "2", "--retries", "3", &file]).exits(1);
    assert_eq!((bench.lines_of("tries"), bench.lines_of("others")), (3, 3));
    assert_eq!(bench.ends(), BTreeMap::from([(1, (0, 0)), (2, (1, 0))]));
    // Leaves out the commands in the log, and those that succeeded.
    bench.run(&["--resume", "--dry-run", &file]).prints_only("");
    let again = ["--resume-failed", "--dry-run", &file];
    bench.run(&again).prints_only("echo y >>others; false\n");
    let file = bench.file("echo x >>tries; [ $(wc -l <tries) -ge 3 ]\ntrue\n");
    let ran = bench.run(&["--resume-failed", &file]).exits(255);
    ran.complains("command 2 was 'echo y >>others; false', and is 'true' now");
}

#[test]
fn after_a_kill_each_command_succeeds_exactly_once_and_nothing_is_left() {
    let bench = bench(1);
    let file = bench.noting(200);
    let pack = Running::start(&mut bench.command(&["-n", "16", &file]), "").expect("pack");
    let have_ended = || bench.lines_of("commands.results/joblog") > 40;
    eventually("some have ended", have_ended);
    // Dropping kills it.
    drop(pack);
    let killed = bench.log("joblog").len();
    assert!(killed < 200, "{killed}");
    // At once: keepers may still be ending their commands, and the log's lock makes it wait.
    fs::write(bench.work("mended"), "").expect("mended");
    let again = ["-n", "16", "--resume-failed", "--json", &file];
    let json = bench.run(&again).ok().json();
    bench.assert_none_left(Duration::ZERO);
    assert_eq!(json["commands"], 200, "{json}");
    assert!(json["already_done"].as_u64() > Some(20), "{json}");
    let is_done = |seq: u64| bench.lines_of(&format!("{seq}.done")) == 1;
    assert!((1..=200).all(is_done));
    let mut good = bench.log("joblog");
    good.retain(|line| (line.code, line.signal) == (0, 0));
    assert_eq!(good.len(), 200);
}

#[test]
fn a_signal_ends_all_and_so_does_the_loss_of_a_keeper() {
    // No other process of the machine sleeps for so long.
    let length = format!("600.{}", std::process::id());
    let clinging = format!("trap '' TERM\nsetsid sleep {length} &\nsleep 601");
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let bench = bench(1);
        let linger = bench.script("linger", &clinging);
        let file = bench.file(&format!("{linger}\n").repeat(3));
        let pack = Running::start(&mut bench.command(&["-n", "2", &file]), "").expect("pack");
        eventually("two run", || bench.left().len() >= 2);
        let is_ours = |one: &look::Process| one.args.contains(&length);
        let sleeping = || look::processes().into_iter().filter(is_ours).count();
        eventually("both have their children", || sleeping() >= 2);
        match signal {
            Signal::SIGINT => kill(pack.pid(), signal),
            _ => {
                // A script's child has its words until it is 'sleep'.
                let all = look::processes();
                let is_copy = |one: &&look::Process| {
                    one.args.iter().any(|arg| arg.ends_with("/linger")) && one.parent != pack.pid()
                };
                let copies: Vec<_> = all.iter().filter(is_copy).collect();
                let is_first =
                    |one: &&&look::Process| copies.iter().all(|copy| copy.pid != one.parent);
                let copy = copies.iter().find(is_first).expect("a command");
                kill(copy.parent, Signal::SIGKILL);
            }
        }
        let ran = pack.finish(Duration::from_secs(60)).expect("its end");
        bench.assert_none_left(Duration::ZERO);
        assert_eq!(sleeping(), 0);
        match signal {
            Signal::SIGINT => {
                assert_eq!(ran.code, Some(130), "{ran:?}");
                assert!(ran.stdout.contains("3 did not come to an end"), "{ran:?}");
            }
            _ => assert_eq!(ran.code, Some(255), "{ran:?}"),
        }
        assert!(bench.log("joblog").is_empty());
    }
}

#[test]
fn no_command_runs_outside_mps_after_the_daemon_has_gone() {
    let bench = bench(1);
    let [control] = bench.bed.pids(tests::run::THREE[1])[..] else {
        panic!("not one control daemon");
    };
    let ends = format!("kill -9 {control}; while [ -e /proc/{control} ]; do sleep 0.1; done");
    let file = bench.file(&format!("{ends}\ntouch outside\n"));
    let ran = bench.run(&["-n", "1", &file]).exits(255);
    ran.complains("the job's control daemon: it has ended");
    assert!(!bench.work("outside").exists());
}

#[test]
fn a_command_without_memory_beside_others_runs_again_alone() {
    let bench = bench(1);
    let client = bench.client("--alloc 90000 --hold 2");
    // The double fixes a client's room when the client connects.
    let too_large = bench.client("--alloc 300000");
    let file = bench.file(&format!(
        "{client}\nsleep 0.8; {client}\n{too_large}\nsleep 0.8; {client}\n"
    ));
    let json = bench.run(&["-n", "4", "--json", &file]).exits(1).json();
    assert_eq!(json["succeeded"], 3, "{json}");
    // Alone it still has only the GPU's memory.
    assert_eq!(json["failed"], serde_json::json!([3]), "{json}");
    let again = json["again_alone"].as_array().map(Vec::len);
    assert_eq!(again, Some(3), "{json}");
    assert!(json["memory_mib"].as_u64() > Some(90_000), "{json}");
    let out = bench.out(3);
    assert!(out.contains("it failed, and runs again"), "{out}");
    // It is alone from the start, so it has one try. With auto, fewer run at once from then on.
    let file = bench.file(&format!("{too_large}\n"));
    let json = bench.run(&["-n", "1", "--json", &file]).exits(1).json();
    assert_eq!(json["again_alone"], serde_json::json!([]), "{json}");
    let file = bench.file(&format!("{client}\nsleep 0.8; {client}\n"));
    let json = bench.run(&["--json", &file]).ok().json();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(json["at_once"], cores.clamp(2, 8) - 1, "{json}");
}

/// One that ran out of memory. The other GPU has as many commands as its own.
#[test]
fn no_command_starts_beside_one_that_must_be_alone() {
    let bench = bench(2);
    let until = |file: &str| format!("until [ -e {file} ]; do sleep 0.1; done");
    let gpu = |seq: u32| format!("echo $CUDA_VISIBLE_DEVICES >gpu.{seq}");
    let lines = [
        until("failed"),
        format!("{}; {}", until("second"), gpu(2)),
        format!(
            "[ -e failed ] || {{ touch failed; echo out of memory; exit 1; }}; touch alone; {}; {}",
            until("second"),
            gpu(3)
        ),
        format!(
            "[ -e again ] || {{ {}; touch again; exit 1; }}; {}; touch second",
            until("alone"),
            gpu(4)
        ),
    ];
    let file = bench.file(&(lines.join("\n") + "\n"));
    let options = ["-n", "4", "--retries", "2", "--json", &file];
    let json = bench.run(&options).ok().json();
    assert_eq!(json["again_alone"], serde_json::json!([3]), "{json}");
    let of = |seq: u32| fs::read_to_string(bench.work(&format!("gpu.{seq}"))).expect("a GPU");
    assert_eq!(of(4), of(2));
    assert_ne!(of(4), of(3));
}

/// What a command said long before it was ended is no reason to run it again.
#[test]
fn a_command_that_ran_into_its_time_limit_is_not_run_again_for_memory() {
    let bench = bench(1);
    let file = bench.file("sleep 0.5\necho out of memory; sleep 60\n");
    let options = ["-n", "2", "--timeout", "3", "--json", &file];
    let json = bench.run(&options).exits(1).json();
    assert_eq!(json["failed"], serde_json::json!([2]), "{json}");
    assert_eq!(json["again_alone"], serde_json::json!([]), "{json}");
}

#[test]
fn commands_share_the_jobs_gpus_and_their_limits_follow_from_how_many_there_are() {
    let bench = bench(2);
    let line = "echo $CUDA_VISIBLE_DEVICES $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT >>seen; sleep 1";
    let file = bench.file(&format!("{line}\n").repeat(8));
    let limits = ["-n", "8", "--threads", "auto", "--mem", "auto", &file];
    bench.run(&limits).ok();
    let seen = fs::read_to_string(bench.work("seen")).expect("seen");
    let mut counts = BTreeMap::<&str, usize>::new();
    for line in seen.lines() {
        *counts.entry(line).or_default() += 1;
    }
    assert!(counts.values().eq(&[4, 4]), "{seen}");
    // 143,771 MiB for four.
    let is_right = |line: &&str| line.contains(" 50 GPU-") && line.ends_with("=35942M");
    assert!(counts.keys().all(is_right), "{seen}");
    // Half a GPU is too little for the third. It gets a whole one while the other two share.
    let client = bench.client("--alloc 90000 --hold 1");
    let file = bench.file(&format!("sleep 2\nsleep 8\n{client}\nsleep 8\n"));
    let options = ["-n", "4", "--mem", "auto", "--json", &file];
    let json = bench.run(&options).ok().json();
    assert_eq!(json["again_alone"], serde_json::json!([3]), "{json}");
}
