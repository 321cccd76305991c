//! `mpsctl sweep` as an ordinary user in a job: what it measures and advises, and that no process
//! is left.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::child::{Ran as Ended, Running};
use tests::double::{copy_program, look};
use tests::node_bed::{eventually, kill};
use tests::run::finish;

use crate::bench::Bench;

impl Bench {
    fn usual() -> Self {
        Self::of(1, "keep", "MPS=true")
    }

    /// `compute_mode` is the site's.
    fn of(gpus: usize, compute_mode: &str, account: &str) -> Self {
        let config = format!("compute_mode = \"{compute_mode}\"");
        let bench = Self::new("sweep", gpus, &config, account);
        copy_program("/bin/sleep".as_ref(), &bench.work("linger")).expect("sleep");
        bench
    }

    /// Clients that take turns have a speed of 1000 together; under MPS 3000; each with a share
    /// 4000. A single client has 1000.
    fn simulation(&self) -> String {
        let (peers, client) = (self.bed.path("peers"), self.bed.node.client());
        let text = format!(
            "cd {peers}\n{client} --node {node} --alloc 256 --hold 3 >$$ &\nuntil [ -s $$ ]; do sleep 0.1; done\nsleep 1.5\nset -- *\n\
             case $(cat $$) in\n\
             *'\"sms\":132'*'\"under_mps\":true'*) all=3000 ;;\n*'\"under_mps\":true'*) all=4000 ;;\n*) all=1000 ;;\nesac\n\
             each=$((all / $#))\n[ $each -le 1000 ] || each=1000\necho \"speed: $each ns/day\"\nwait\nrm $$",
            peers = peers.display(),
            client = client.display(),
            node = self.bed.node.dir().display(),
        );
        self.script("simulation", &text)
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        self.run(&[&["--json"], args].concat()).ok().json()
    }

    /// This many clients under MPS only, without a share.
    fn limitless(&self, clients: &str, more: &[&str]) -> Value {
        let words = ["--clients", clients, "--threads", "none", "--only-mps"];
        self.json(&[&words, more].concat())
    }
}

fn row<'a>(json: &'a Value, clients: u64, threads: Option<&str>) -> &'a Value {
    let mut rows = json["rows"].as_array().expect("rows").iter();
    let is_it = |row: &&Value| row["clients"] == clients && row["threads"].as_str() == threads;
    let found = rows.find(is_it);
    found.unwrap_or_else(|| panic!("{clients} {threads:?}: {json}"))
}

fn figure(json: &Value, clients: u64, threads: Option<&str>) -> f64 {
    let figure = row(json, clients, threads)["throughput"].as_f64();
    figure.unwrap_or_else(|| panic!("{json}"))
}

#[test]
fn clients_are_measured_side_by_side_and_the_best_is_told() {
    let bench = Bench::usual();
    let simulation = bench.simulation();
    let args = ["--clients", "4,1,2", "--metric", "ns/day"];
    let json = bench.json(&[&args[..], &["--", &simulation]].concat());
    let of = |threads| [1, 2, 4].map(|clients| figure(&json, clients, threads));
    assert_eq!(of(None), [1000.0; 3], "taking turns: {json}");
    assert_eq!(of(Some("none")), [1000.0, 2000.0, 3000.0], "MPS: {json}");
    assert_eq!(of(Some("auto"))[2], 4000.0, "with a share: {json}");
    assert_eq!(row(&json, 4, Some("auto"))["percent"], 50.0);
    let percent = &row(&json, 2, Some("auto"))["percent"];
    assert!(percent.is_null(), "200/2 is no limit: {json}");
    assert_eq!(
        json["advice"],
        "4 clients, MPS=true,MPS_THREADS=auto: 4.0 × one after another, 4.0 × the same 4 without MPS; memory allows 272, MPS 48; \
         more may be better still (--clients 8)"
    );
    let memory = row(&json, 4, Some("none"))["memory_mib"].as_u64();
    let memory = memory.expect("memory");
    assert!((256..1024).contains(&memory), "with a context: {memory}");
    bench.assert_none_left(Duration::ZERO);
}

/// In an exclusive mode nothing runs outside MPS, so clients are compared with one that has the GPU
/// alone, under MPS.
#[test]
fn on_an_exclusive_gpu_the_comparison_is_one_client_at_a_time_under_mps() {
    let bench = Bench::of(1, "exclusive", "MPS=true");
    let simulation = bench.simulation();
    let options = ["--clients", "2,4", "--threads", "none"];
    let metric = ["--metric", "ns/day", "--", &simulation];
    let json = bench.json(&[options, metric].concat());
    let rows = json["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["mps"] == true), "{json}");
    let of = [1, 2, 4].map(|clients| figure(&json, clients, Some("none")));
    assert_eq!(of, [1000.0, 2000.0, 3000.0], "one is added: {json}");
    let advice = json["advice"].as_str().expect("advice");
    let gain = "4 clients, MPS=true: 3.0 × one after another under MPS; memory allows";
    assert!(advice.starts_with(gain), "{advice}");
    let note = json["notes"][0].as_str().expect("note");
    assert!(note.contains("one client at a time under MPS"), "{json}");
}

#[test]
fn a_job_without_mps_is_told_how_to_ask_and_one_with_a_share_is_refused() {
    let bench = Bench::of(1, "keep", "");
    let json = bench.json(&["--clients", "1", "--", "/bin/true"]);
    assert_eq!(json["rows"].as_array().expect("rows").len(), 1, "{json}");
    let advice = json["advice"].as_str().expect("advice");
    assert!(advice.contains("submit it with -A MPS=true"), "{json}");
    let mut outside = bench.command(&["--", "/bin/true"]);
    let ran = finish(outside.env_remove("PBS_JOBID")).exits(1);
    ran.complains("this is no job");
    let limited = Bench::of(1, "keep", "MPS=true,MPS_THREADS=25");
    let ran = limited.run(&["--", "/bin/true"]).exits(1);
    ran.complains("25 %").complains("allowed: a job with --mps");
}

#[test]
fn completions_are_counted_and_a_run_that_never_ends_is_cut() {
    let bench = Bench::usual();
    let quick = bench.script("quick", "sleep 0.5");
    let json = bench.limitless("1,2", &["--", &quick]);
    let [one, two] = [1, 2].map(|clients| figure(&json, clients, Some("none")));
    let at_most_two_a_second = 2000.0..7300.0;
    assert!(at_most_two_a_second.contains(&one), "{one}");
    assert!((one..14_600.0).contains(&two), "{json}");
    let json = bench.limitless("1", &["--seconds", "3", "--", &quick]);
    let cut = figure(&json, 1, Some("none"));
    assert!(at_most_two_a_second.contains(&cut), "{json}");
    // The last figure before the end of its time counts.
    let text = "n=0; while :; do n=$((n + 1)); echo $n steps; sleep 0.2; done";
    let endless = bench.script("endless", text);
    let options = ["--seconds", "2", "--metric", "steps", "--", &endless];
    let json = bench.limitless("2", &options);
    let steps = figure(&json, 2, Some("none"));
    assert!((5.0..24.0).contains(&steps), "{json}");
    // Neither a figure nor an end.
    let options = ["--clients", "1", "--only-mps", "--seconds", "1"];
    let ran = bench.run(&[&options[..], &["--", &endless]].concat());
    let told = "none came to its end within 1 s: give more --seconds, or --metric";
    ran.exits(1).prints(told);
    bench.assert_none_left(Duration::ZERO);
}

#[test]
fn a_program_that_fails_or_says_no_figure_is_told_in_its_own_words() {
    let bench = Bench::usual();
    let text = "printf 'no \\033[31mspace\\007 left\\n' >&2; exit 3";
    let failing = bench.script("failing", text);
    let ran = bench.run(&["--clients", "1,2", "--", &failing]).exits(1);
    ran.prints("note: 1 client, MPS: it ended by exit code 3; its last line: no ?[31mspace? left");
    // It does not try more of the same.
    assert!(!ran.out.contains("2 clients"), "{ran:?}");
    // Each round tries the smaller number first. Two fail, and one has a figure from each round.
    let peers = bench.bed.path("peers");
    let text = format!(
        "cd {}\n: >$$\nsleep 1\nfor peer in *; do kill -0 $peer 2>&- || rm -f $peer; done\nset -- *\nrm -f $$\n\
         [ $# -eq 1 ] || exit 3\necho '5 apples'",
        peers.display()
    );
    let pair = bench.script("pair", &text);
    let json = bench.limitless("1,2", &["--repeat", "3", "--metric", "apples", "--", &pair]);
    let one = row(&json, 1, Some("none"));
    assert_eq!(one["runs"].as_array().map(Vec::len), Some(3), "{json:#}");
    let two = &row(&json, 2, Some("none"))["failed"];
    assert!(two.is_string(), "{json:#}");
    let one = |rest: &[&str]| bench.run(&[&["--clients", "1", "--only-mps"], rest].concat());
    let mute = one(&["--metric", "ns/day", "--", "/bin/echo", "3 apples"]);
    mute.prints("nothing that it wrote matches 'ns/day'; its last line: 3 apples");
    one(&["--", "/nonexistent"]).prints("cannot run '/nonexistent'");
    let odd = bench.run(&["--threads", "120", "--", "/bin/true"]);
    odd.exits(2).complains("above 100");
}

/// A copy with three children: one ignores SIGTERM, one has left its session, one has left its
/// parent.
const CLINGING: &str = "trap '' TERM\nsetsid LINGER 600 &\n(LINGER 601 &)\nLINGER 602";

#[test]
fn children_that_outlive_their_run_are_ended_with_it() {
    let bench = Bench::usual();
    let linger = bench.work("linger").display().to_string();
    let text = CLINGING
        .replace("LINGER 602", "echo 1 x")
        .replace("LINGER", &linger);
    let leaving = bench.script("leaving", &text);
    let json = bench.limitless("2", &["--metric", "x", "--", &leaving]);
    assert_eq!(figure(&json, 2, Some("none")), 2.0, "{json}");
    bench.assert_none_left(Duration::ZERO);
}

fn clinging(bench: &Bench) -> Running {
    let linger = bench.work("linger").display().to_string();
    let script = bench.script("clinging", &CLINGING.replace("LINGER", &linger));
    let args = ["--clients", "2", "--only-mps", "--", &script];
    let sweep = Running::start(&mut bench.command(&args), "").expect("sweep");
    let running = || look::processes_from(&bench.work("")).len();
    eventually("all copies run", || running() == 6);
    sweep
}

#[track_caller]
fn ended(bench: &Bench, sweep: Running) -> Ended {
    let ended = sweep.finish(Duration::from_secs(60)).expect("its end");
    bench.assert_none_left(Duration::ZERO);
    ended
}

#[test]
fn a_sweep_that_is_told_to_end_leaves_nothing_and_says_so() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let bench = Bench::usual();
        let sweep = clinging(&bench);
        kill(sweep.pid(), signal);
        let ran = ended(&bench, sweep);
        assert_eq!(ran.code, Some(128 + signal as i32), "{ran:?}");
        let told = ran.stderr.contains(&format!("ended by {signal}"));
        assert!(told, "{ran:?}");
    }
}

#[test]
fn a_sweep_or_its_keeper_that_is_killed_leaves_nothing() {
    let bench = Bench::usual();
    // Dropping kills it.
    drop(clinging(&bench));
    bench.assert_none_left(Duration::from_secs(10));
    let sweep = clinging(&bench);
    let parent_of = |pid: u32| look::process(pid).map(|process| process.parent);
    let is_copy = |process: &look::Process| {
        let runs_it = process.args.iter().any(|arg| arg.ends_with("/clinging"));
        runs_it && parent_of(process.parent) == Some(sweep.pid())
    };
    let copy = look::processes().into_iter().find(is_copy);
    kill(copy.expect("a copy").parent, Signal::SIGKILL);
    let ran = ended(&bench, sweep);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let told = "the process that started it ended by signal 9";
    assert!(ran.stdout.contains(told), "{ran:?}");
}
