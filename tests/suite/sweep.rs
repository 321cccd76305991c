//! `mpsctl sweep` as an ordinary user in a job: what it measures and advises, and that nothing of what it starts is left.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User};
use serde_json::Value;
use tests::double::{copy_program, look};
use tests::place::{Place, fast};
use tests::stage::{Ran, USER, as_user, finish};

/// The job of these tests.
const JOB: &str = "7.srv";

/// A node with a job of [`USER`]'s, and programs for it to run.
struct Bench {
    place: Place,
    asked: bool,
}

impl Bench {
    /// `compute_mode` is that of the site; an empty account asks for nothing.
    fn new(gpus: usize, compute_mode: &str, account: &str) -> Self {
        let place = Place::new(fast(gpus), &format!("compute_mode = \"{compute_mode}\""));
        let stage = &place.stage;
        let user = User::from_name(USER).expect("passwd").expect("user");
        for dir in ["programs", "peers"] {
            let dir = stage.path(dir);
            fs::create_dir(&dir).expect("directory");
            chown(&dir, Some(user.uid.as_raw()), Some(user.gid.as_raw())).expect("chown");
        }
        copy_program("/bin/sleep".as_ref(), &stage.path("programs/linger")).expect("sleep");
        let asked = !account.is_empty();
        if asked {
            let list: Vec<String> = (0..gpus).map(|gpu| gpu.to_string()).collect();
            let ran = place.torque(JOB, account, &list.join(","));
            assert_eq!(ran.code, Some(0), "{ran:?}");
        }
        Self { place, asked }
    }

    /// A script of the user's.
    fn script(&self, name: &str, text: &str) -> String {
        let file = self.place.stage.path("programs").join(name);
        fs::write(&file, format!("#!/bin/sh\n{text}\n")).expect("script");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("chmod");
        file.display().to_string()
    }

    /// A client of the simulated CUDA whose speed depends on how it shares the GPU: taking turns they have 1000 together, under
    /// MPS 3000, and 4000 where each has a share; one alone has 1000.
    fn simulation(&self) -> String {
        let (peers, client) = (self.place.stage.path("peers"), self.place.stage.node.client());
        let text = format!(
            "cd {peers}\n{client} --node {node} --alloc 256 --hold 3 >$$ &\nuntil [ -s $$ ]; do sleep 0.1; done\nsleep 1.5\nset -- *\n\
             case $(cat $$) in\n\
             *'\"sms\":132'*'\"under_mps\":true'*) all=3000 ;;\n*'\"under_mps\":true'*) all=4000 ;;\n*) all=1000 ;;\nesac\n\
             each=$((all / $#))\n[ $each -le 1000 ] || each=1000\necho \"speed: $each ns/day\"\nwait\nrm $$",
            peers = peers.display(),
            client = client.display(),
            node = self.place.stage.node.dir().display(),
        );
        self.script("simulation", &text)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = as_user(USER, self.place.stage.program("mpsctl"));
        command
            .arg("--config")
            .arg(self.place.stage.config())
            .arg("sweep")
            .args(args);
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("PBS_JOBID", JOB);
        command
    }

    fn sweep(&self, args: &[&str]) -> Ran {
        finish(self.command(args))
    }

    /// The same as JSON.
    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        let ran = self.sweep(&[&["--json"], args].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
    }

    /// So many clients under MPS alone, without a share.
    fn limitless(&self, clients: &str, more: &[&str]) -> Value {
        let words = ["--clients", clients, "--threads", "none", "--only-mps"];
        self.json(&[&words, more].concat())
    }

    /// What runs out of the user's directory, or of the node's clients.
    fn left(&self) -> Vec<String> {
        let programs = look::processes_from(&self.place.stage.path("programs"));
        let clients = self.place.stage.node.processes().into_iter().filter(|process| {
            let name = process
                .exe
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            name.is_some_and(|name| !name.starts_with("nvidia"))
        });
        let scripts = look::processes().into_iter().filter(|process| {
            let ours = self.place.stage.path("programs").display().to_string();
            process.args.iter().any(|arg| arg.starts_with(&ours))
                && !process.args.iter().any(|arg| arg == "sweep")
        });
        programs
            .into_iter()
            .chain(clients)
            .chain(scripts)
            .map(|process| format!("{process:?}"))
            .collect()
    }

    #[track_caller]
    fn assert_none_left(&self, limit: Duration) {
        look::wait_until(limit, || self.left().is_empty());
        assert_eq!(self.left(), Vec::<String>::new());
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if self.asked {
            let _ = self.place.stage.torque_end(JOB);
        }
    }
}

/// A row of the JSON.
fn row<'a>(json: &'a Value, clients: u64, threads: Option<&str>) -> &'a Value {
    let rows = json["rows"].as_array().expect("rows");
    let is_it = |row: &&Value| row["clients"] == clients && row["threads"].as_str() == threads;
    rows.iter()
        .find(is_it)
        .unwrap_or_else(|| panic!("{clients} {threads:?}: {json}"))
}

fn figure(json: &Value, clients: u64, threads: Option<&str>) -> f64 {
    row(json, clients, threads)["throughput"]
        .as_f64()
        .unwrap_or_else(|| panic!("{json}"))
}

#[test]
fn clients_are_measured_side_by_side_and_the_best_is_told() {
    let bench = Bench::new(1, "keep", "MPS=true");
    let plot = bench.place.stage.path("programs/plot.svg");
    let simulation = bench.simulation();
    let args = [
        "--clients",
        "4,1,2",
        "--metric",
        "ns/day",
        "--svg",
        plot.to_str().expect("text"),
        "--",
        &simulation,
    ];
    let json = bench.json(&args);
    let of = |clients, threads| figure(&json, clients, threads);
    assert_eq!(
        [of(1, None), of(2, None), of(4, None)],
        [1000.0; 3],
        "taking turns: {json}"
    );
    assert_eq!(
        [of(1, Some("none")), of(2, Some("none")), of(4, Some("none"))],
        [1000.0, 2000.0, 3000.0],
        "under MPS: {json}"
    );
    assert_eq!(of(4, Some("auto")), 4000.0, "with a share: {json}");
    assert_eq!(row(&json, 4, Some("auto"))["percent"], 50.0);
    assert!(
        row(&json, 2, Some("auto"))["percent"].is_null(),
        "200/2 is no limit: {json}"
    );
    assert_eq!(
        json["advice"],
        "4 clients, MPS=true,MPS_THREADS=auto: 4.0 × one after another, 4.0 × the same 4 without MPS; memory allows 272, MPS 48; \
         more may be better still (--clients 8)"
    );
    let memory = row(&json, 4, Some("none"))["memory_mib"]
        .as_u64()
        .expect("memory");
    assert!((256..1024).contains(&memory), "256 MiB and a context: {memory}");
    let svg = fs::read_to_string(&plot).expect("plot");
    assert!(
        svg.starts_with("<svg") && svg.contains("MPS, auto") && svg.contains("ns/day"),
        "{svg}"
    );
    bench.assert_none_left(Duration::ZERO);
}

#[test]
fn a_table_with_bars_is_for_people() {
    let bench = Bench::new(1, "keep", "MPS=true");
    let simulation = bench.simulation();
    let ran = bench.sweep(&[
        "--clients",
        "1,4",
        "--threads",
        "none,100/n",
        "--metric",
        "([0-9]+) ns/day",
        "--",
        &simulation,
    ]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(
        lines[1], "clients  without MPS          MPS   MPS, 100/n  memory of each",
        "{}",
        ran.out
    );
    assert!(
        lines[3].starts_with("      4        1,000        3,000        4,000"),
        "{}",
        ran.out
    );
    assert!(
        ran.out
            .contains(&format!("   4 MPS, 100/n  {} 4,000", "█".repeat(40))),
        "{}",
        ran.out
    );
    assert!(
        ran.out
            .contains("4 clients, MPS=true,MPS_THREADS=25: 4.0 × one after another"),
        "{}",
        ran.out
    );
    assert!(!ran.err.contains('\u{1b}'), "no terminal, no bar: {}", ran.err);
    assert!(
        ran.err.contains("4 clients, MPS: 3000.00"),
        "a line for the job's log: {}",
        ran.err
    );
}

#[test]
fn copies_take_the_jobs_gpus_in_turn() {
    let bench = Bench::new(2, "keep", "MPS=true");
    let peers = bench.place.stage.path("peers");
    let text = format!(
        "cd {}\nenv >$$\necho 1 x\nexec {} --node {} --hold 0.3",
        peers.display(),
        bench.place.stage.node.client().display(),
        bench.place.stage.node.dir().display()
    );
    let client = bench.script("client", &text);
    let json = bench.json(&[
        "--clients",
        "4",
        "--threads",
        "auto",
        "--metric",
        "x",
        "--",
        &client,
    ]);
    assert_eq!(json["gpus"], 2);
    assert_eq!(
        row(&json, 4, Some("auto"))["percent"],
        Value::Null,
        "two on each GPU"
    );
    let mut with = Vec::new();
    let mut without = Vec::new();
    for entry in fs::read_dir(&peers).expect("peers").flatten() {
        let text = fs::read_to_string(entry.path()).expect("environment");
        let value = |name: &str| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            line.unwrap_or_default().to_owned()
        };
        let pipe = value("CUDA_MPS_PIPE_DIRECTORY");
        let list = if pipe.ends_with(&format!("{JOB}/pipe")) {
            &mut with
        } else {
            &mut without
        };
        assert_eq!(value("MPSD_JOB").is_empty(), !pipe.contains(JOB), "{text}");
        assert!(
            !pipe.is_empty() && (pipe.contains(JOB) || !PathBuf::from(&pipe).exists()),
            "{text}"
        );
        list.push(value("CUDA_VISIBLE_DEVICES"));
    }
    for list in [&mut with, &mut without] {
        list.sort();
        let half = list.first().cloned().expect("copies");
        assert_eq!(list.len(), 4, "{list:?}");
        assert_eq!(
            list.iter().filter(|gpu| **gpu == half).count(),
            2,
            "two on each: {list:?}"
        );
    }
}

#[test]
fn without_mps_is_left_out_where_nothing_runs_outside_of_it() {
    let bench = Bench::new(1, "exclusive", "MPS=true");
    let json = bench.json(&["--clients", "1,2", "--", "/bin/true"]);
    assert!(
        json["rows"]
            .as_array()
            .expect("rows")
            .iter()
            .all(|row| row["mps"] == true),
        "{json}"
    );
    assert!(
        json["notes"][0].as_str().expect("note").contains("exclusive"),
        "{json}"
    );
}

#[test]
fn a_job_without_mps_is_told_how_to_ask_and_one_with_a_share_is_refused() {
    let bench = Bench::new(1, "keep", "");
    let json = bench.json(&["--clients", "1", "--", "/bin/true"]);
    assert_eq!(json["rows"].as_array().expect("rows").len(), 1, "{json}");
    assert!(
        json["advice"]
            .as_str()
            .expect("advice")
            .contains("submit it with -A MPS=true"),
        "{json}"
    );
    let mut outside = bench.command(&["--", "/bin/true"]);
    let outside = finish({
        outside.env_remove("PBS_JOBID");
        outside
    });
    assert_eq!(outside.code, Some(1), "{outside:?}");
    assert!(outside.err.contains("this is no job"), "{outside:?}");
    let limited = Bench::new(1, "keep", "MPS=true,MPS_THREADS=25");
    let ran = limited.sweep(&["--", "/bin/true"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.err.contains("25 %") && ran.err.contains("allowed: a job with --mps"),
        "{ran:?}"
    );
}

#[test]
fn completions_are_counted_and_a_run_that_never_ends_is_cut() {
    let bench = Bench::new(1, "keep", "MPS=true");
    let quick = bench.script("quick", "sleep 0.5");
    let json = bench.limitless("1,2", &["--", &quick]);
    let [one, two] = [1, 2].map(|clients| figure(&json, clients, Some("none")));
    assert!((4000.0..7300.0).contains(&one), "two a second at most: {one}");
    assert!(two > 1.5 * one, "{json}");
    let json = bench.limitless("1", &["--seconds", "3", "--", &quick]);
    assert!(
        (4000.0..7300.0).contains(&figure(&json, 1, Some("none"))),
        "{json}"
    );
    // The last figure before its time is up counts.
    let endless = bench.script(
        "endless",
        "n=0; while :; do n=$((n + 1)); echo $n steps; sleep 0.2; done",
    );
    let json = bench.limitless("2", &["--seconds", "2", "--metric", "steps", "--", &endless]);
    assert!((10.0..24.0).contains(&figure(&json, 2, Some("none"))), "{json}");
    // One without a figure, nor an end.
    let ran = bench.sweep(&["--clients", "1", "--only-mps", "--seconds", "1", "--", &endless]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.out.contains("none came to its end within 1 s"), "{ran:?}");
    bench.assert_none_left(Duration::ZERO);
}

#[test]
fn a_program_that_fails_or_says_no_figure_is_told_in_its_own_words() {
    let bench = Bench::new(1, "keep", "MPS=true");
    let failing = bench.script("failing", "printf 'no \\033[31mspace\\007 left\\n' >&2; exit 3");
    let ran = bench.sweep(&["--clients", "1,2", "--", &failing]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let note = "note: 1 client, MPS: it ended by exit code 3; its last line: no ?[31mspace? left";
    assert!(ran.out.contains(note), "{ran:?}");
    assert!(
        !ran.out.contains("2 clients"),
        "more of the same is not tried: {ran:?}"
    );
    // So does each round: what fails with two has been measured with one in all of them.
    let peers = bench.place.stage.path("peers");
    let text = format!(
        "cd {}\n: >$$\nsleep 1\nfor peer in *; do kill -0 $peer 2>&- || rm -f $peer; done\nset -- *\nrm -f $$\n\
         [ $# -eq 1 ] || exit 3\necho '5 apples'",
        peers.display()
    );
    let pair = bench.script("pair", &text);
    let json = bench.limitless("1,2", &["--repeat", "3", "--metric", "apples", "--", &pair]);
    let one = row(&json, 1, Some("none"));
    assert_eq!(one["runs"].as_array().map(Vec::len), Some(3), "{json:#}");
    assert!(row(&json, 2, Some("none"))["failed"].is_string(), "{json:#}");
    let mute = bench.sweep(&[
        "--clients",
        "1",
        "--only-mps",
        "--metric",
        "ns/day",
        "--",
        "/bin/echo",
        "3 apples",
    ]);
    assert!(
        mute.out
            .contains("nothing that it wrote matches 'ns/day'; its last line: 3 apples"),
        "{mute:?}"
    );
    let absent = bench.sweep(&["--clients", "1", "--only-mps", "--", "/nonexistent"]);
    assert!(absent.out.contains("cannot run '/nonexistent'"), "{absent:?}");
    let odd = bench.sweep(&["--threads", "120", "--", "/bin/true"]);
    assert!(odd.code == Some(2) && odd.err.contains("above 100"), "{odd:?}");
}

#[test]
fn megabytes_of_garbage_are_read_and_forgotten() {
    let bench = Bench::new(1, "keep", "MPS=true");
    let text = "head -c 4000000 /dev/urandom; echo; echo '12.5 ns/day'; head -c 3000000 /dev/zero";
    let garbage = bench.script("garbage", text);
    let json = bench.limitless("2", &["--metric", "ns/day", "--", &garbage]);
    assert_eq!(figure(&json, 2, Some("none")), 25.0, "{json}");
}

/// A copy with a child that ignores SIGTERM, and one that has left its session and its parent.
const CLINGING: &str = "trap '' TERM\nsetsid LINGER 600 &\n(LINGER 601 &)\nLINGER 602";

#[test]
fn children_that_outlive_their_run_are_ended_with_it() {
    let bench = Bench::new(1, "keep", "MPS=true");
    let linger = bench.place.stage.path("programs/linger").display().to_string();
    let text = CLINGING
        .replace("LINGER 602", "echo 1 x")
        .replace("LINGER", &linger);
    let leaving = bench.script("leaving", &text);
    let json = bench.limitless("2", &["--metric", "x", "--", &leaving]);
    assert_eq!(figure(&json, 2, Some("none")), 2.0, "{json}");
    bench.assert_none_left(Duration::ZERO);
}

/// A sweep of clinging copies, all of which run.
fn clinging(bench: &Bench) -> Child {
    let linger = bench.place.stage.path("programs/linger").display().to_string();
    let script = bench.script("clinging", &CLINGING.replace("LINGER", &linger));
    let child = bench
        .command(&["--clients", "2", "--only-mps", "--", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("sweep");
    let all = || look::processes_from(&bench.place.stage.path("programs")).len() == 6;
    assert!(
        look::wait_until(Duration::from_secs(20), all),
        "{:?}",
        bench.left()
    );
    child
}

#[test]
fn a_sweep_that_is_told_to_end_leaves_nothing_and_says_so() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let bench = Bench::new(1, "keep", "MPS=true");
        let child = clinging(&bench);
        kill(Pid::from_raw(child.id().cast_signed()), signal).expect("signal");
        let output = child.wait_with_output().expect("wait");
        bench.assert_none_left(Duration::ZERO);
        assert_eq!(output.status.code(), Some(128 + signal as i32), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(&format!("ended by {signal}")), "{said}");
    }
}

#[test]
fn a_sweep_or_its_keeper_that_is_killed_leaves_nothing() {
    let bench = Bench::new(1, "keep", "MPS=true");
    let mut child = clinging(&bench);
    child.kill().expect("kill");
    child.wait().expect("wait");
    bench.assert_none_left(Duration::from_secs(10));
    let child = clinging(&bench);
    let parent_of = |pid: u32| look::process(pid).map(|process| process.parent);
    let copy = look::processes().into_iter().find(|process| {
        process.args.iter().any(|arg| arg.ends_with("/clinging"))
            && parent_of(process.parent) == Some(child.id())
    });
    let keeper = copy.expect("a copy").parent;
    kill(Pid::from_raw(keeper.cast_signed()), Signal::SIGKILL).expect("kill");
    let output = child.wait_with_output().expect("wait");
    bench.assert_none_left(Duration::ZERO);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.contains("the process that started them ended by signal 9"),
        "{said}"
    );
}
