//! `cargo xtask test`: what CI's main job runs, stage by stage; `cargo xtask test STAGE...`: these
//! alone.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use fs_err as fs;

use crate::install::{EMULATOR, arm64, deny, slurm};
use crate::package::programs::{self, Machine};
use crate::{cargo, command, machine, site, system};

/// Longest time for one stage. With eight busy loops on two processors the packages alone are built
/// in 24 minutes.
const LONGEST: Duration = Duration::from_secs(5400);

/// On a loaded machine a bound on time can fall. So a few tests that failed run once more, alone,
/// and the last lines name those that pass then. More failures than these are no accident.
const MOST_AGAIN: usize = 4;

/// The unit tests that an emulator can run. The others ask the kernel, which stays this machine's.
const EMULATED: &str = "--lib -p mpsd-core -- environment:: gpu:: job:: limits:: step::";

/// The cells that also run on Debian 13's Slurm: all that depend on where Slurm is, in less than
/// three minutes.
const NEWER: &str = "matrix_confined configless shared_cgroups shared_several";

/// What procps or systemd sets on every booted Debian, and so on a site's nodes.
const BOOTED: [(&str, &str); 3] = [
    ("protected_regular", "2"),
    ("protected_fifos", "2"),
    ("protected_symlinks", "1"),
];

/// The stages: when, name, the stages that it needs first, what it does, and cargo's words if that
/// is all. After the first ones, two lanes run: 'here' has the stages that mostly wait, 'beside'
/// those that mostly compute. A lane that has no more of its own takes from the rest.
const STAGES: &str = "\
first  | setup       |             | installs Slurm and munge where they are missing |
first  | fmt         |             | cargo fmt --check | fmt --all --check
first  | build       |             | all programs and tests: the others start them | build --locked --workspace --all-targets
here   | unit        | build       | the unit tests of all crates, and what the plugin exports | test --locked --workspace --lib --bins --test abi
here   | mom         | build       | the installed files under simulated moms of Torque and OpenPBS | test --locked --workspace --test mom
here   | contract    | build       | what is relied on of NVIDIA's daemon, on its double | test --locked --workspace --test contract
here   | suite       | build       | whole programs on beds, the life of a job on the sim, the project's rules | test --locked --workspace --test suite
here   | slurm       | setup build | jobs on a real Slurm with simulated GPUs | test --locked --workspace --test slurm
beside | packages    | setup build | the packages, on systems that boot | test --locked --workspace --test packages
beside | vm          | build       | cells on a machine of their own, with cgroup v2 alone |
rest   | slurm-24.11 | build       | cells on Debian 13's Slurm, in the system that 'packages' made |
rest   | clippy      |             | cargo clippy, warnings are errors | clippy --locked --workspace --all-targets -- -D warnings
rest   | oldest-rust |             | cargo check by the oldest Rust of Cargo.toml |
rest   | doc         |             | cargo doc, warnings are errors | doc --locked --workspace --no-deps --document-private-items
rest   | aarch64     |             | builds what is shipped for aarch64 |
rest   | arm64-unit  |             | unit tests for aarch64, by an emulator |
rest   | docs        | build       | the documentation's site, each link followed |
rest   | deny        |             | licences, sources and versions of the dependencies |";

/// Stages of the rest that wait for others to end: 'slurm-24.11' uses the system of 'packages', and
/// two stages must not start a Slurm or install packages at the same time.
const AFTER: [(&str, &str); 3] = [
    ("slurm-24.11", "packages slurm"),
    ("arm64-unit", "packages vm"),
    ("docs", "packages vm"),
];

struct Stage {
    when: &'static str,
    name: &'static str,
    needs: Vec<&'static str>,
    what: &'static str,
    cargo: &'static str,
}

fn stages() -> impl Iterator<Item = Stage> {
    STAGES.lines().map(|line| {
        let mut cells = line.split('|').map(str::trim);
        let mut next = || cells.next().unwrap_or_default();
        Stage {
            when: next(),
            name: next(),
            needs: next().split_whitespace().collect(),
            what: next(),
            cargo: next(),
        }
    })
}

/// Runs all, or these stages and what they need.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Name the stages and run none
    #[arg(long)]
    list: bool,
    /// Run these stages and what they need, each as CI does
    #[arg(value_name = "STAGE")]
    stages: Vec<String>,
}

/// Runs all stages, also after a failure, and ends with one line of counts. Tests mostly wait, so
/// two run at a time; the lines of those beside follow the others'.
pub fn run(options: &Options) -> Result<ExitCode> {
    if options.list {
        for stage in stages() {
            println!("{:<12} {}", stage.name, stage.what);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut report = Report::default();
    if options.stages.is_empty() {
        // It needs a GPU, and so is a program of its own.
        let why = match Path::new("/dev/nvidia0").exists() {
            true => "not part of this: run 'cargo xtask hardware'",
            false => "no /dev/nvidia0 on this machine; elsewhere: 'cargo xtask hardware'",
        };
        report.skip(&format!(
            "hardware: NVIDIA's own programs and a real GPU: {why}"
        ));
    }
    let unlike = BOOTED.iter().filter_map(unlike_booted);
    report.tally.skipped.extend(unlike);
    let chosen = chosen(&options.stages)?;
    for stage in chosen.iter().filter(|stage| stage.when == "first") {
        report.one(stage);
    }
    let mut beside = Report {
        stages: report.stages.clone(),
        held: Some(String::new()),
        ..Report::default()
    };
    let built = report.stages.len();
    let queue = Queue::new(&chosen);
    std::thread::scope(|scope| {
        scope.spawn(|| queue.run(&mut beside, "beside"));
        queue.run(&mut report, "here");
    });
    report.say(&beside.held.take().unwrap_or_default());
    report.stages.extend(beside.stages.split_off(built));
    report.tally.add(beside.tally);
    Ok(report.end())
}

/// The stages after the first ones that have not ended, and whether each has begun.
struct Queue<'a> {
    stages: Mutex<Vec<(&'a Stage, bool)>>,
    ended: Condvar,
}

impl<'a> Queue<'a> {
    fn new(stages: &'a [Stage]) -> Queue<'a> {
        let stages = stages.iter().filter(|stage| stage.when != "first");
        Queue {
            stages: Mutex::new(stages.map(|stage| (stage, false)).collect()),
            ended: Condvar::new(),
        }
    }

    /// Runs the stages of this lane, then the rest.
    fn run(&self, report: &mut Report, when: &str) {
        while let Some(stage) = self.next(when) {
            // The other lane waits for its end, also if it panics.
            let ran = catch_unwind(AssertUnwindSafe(|| report.one(stage)));
            self.end(stage);
            ran.unwrap_or_else(|panic| resume_unwind(panic));
        }
    }

    fn end(&self, ended: &Stage) {
        let mut stages = self.stages.lock().expect("no thread panics");
        stages.retain(|(stage, _)| stage.name != ended.name);
        self.ended.notify_all();
    }

    /// Waits for a stage that may begin; `None` if none is left.
    fn next(&self, when: &str) -> Option<&'a Stage> {
        let mut stages = self.stages.lock().expect("no thread panics");
        loop {
            if let Some(at) = free(&stages, when) {
                stages[at].1 = true;
                return Some(stages[at].0);
            }
            let mut unbegun = stages.iter().filter(|(_, has_begun)| !has_begun);
            if !unbegun.any(|(stage, _)| stage.when == "rest") {
                return None;
            }
            stages = self.ended.wait(stages).expect("no thread panics");
        }
    }
}

/// The place of the next stage that may begin.
fn free(stages: &[(&Stage, bool)], when: &str) -> Option<usize> {
    let is_open = |name: &str| stages.iter().any(|(stage, _)| stage.name == name);
    let must_wait = |name: &str| {
        let mut after = AFTER.iter().filter(|(stage, _)| *stage == name);
        after.any(|(_, others)| others.split(' ').any(is_open))
    };
    let may = |(stage, has_begun): &(&Stage, bool), when| {
        stage.when == when && !has_begun && !must_wait(stage.name)
    };
    let find = |when| stages.iter().position(|stage| may(stage, when));
    find(when).or_else(|| find("rest"))
}

/// The named stages with those that they need, in order; all stages if none is named.
fn chosen(names: &[String]) -> Result<Vec<Stage>> {
    let mut wanted = Vec::new();
    for name in names {
        let unknown = || format!("no stage '{name}': see 'cargo xtask test --list'");
        let stage = stages()
            .find(|stage| stage.name == name)
            .with_context(unknown)?;
        wanted.extend(stage.needs.into_iter().chain([stage.name]));
    }
    let is_wanted = |stage: &Stage| names.is_empty() || wanted.contains(&stage.name);
    Ok(stages().filter(is_wanted).collect())
}

/// A setting that this machine lacks. It is for the whole machine, so only `.ci/run` changes it.
fn unlike_booted((name, value): &(&str, &str)) -> Option<String> {
    let set = fs::read_to_string(format!("/proc/sys/fs/{name}")).unwrap_or_default();
    let set = set.trim();
    (set != *value).then(|| format!("fs.{name}={value}, as on a booted Debian: it is '{set}' here"))
}

#[derive(Clone)]
struct Outcome {
    name: &'static str,
    took: Duration,
    passed: bool,
}

#[derive(Default)]
struct Report {
    stages: Vec<Outcome>,
    tally: Tally,
    /// Lines to be shown later.
    held: Option<String>,
}

impl Report {
    fn one(&mut self, stage: &Stage) {
        match stage.needs.iter().find(|needed| self.failed(needed)) {
            Some(needed) => self.skip(&format!("{}: '{needed}' failed", stage.name)),
            None => self.stage(stage),
        }
    }

    fn say(&mut self, line: &str) {
        match &mut self.held {
            Some(held) => *held += &format!("{line}\n"),
            None => println!("{line}"),
        }
    }

    fn stage(&mut self, stage: &Stage) {
        let (name, started) = (stage.name, Instant::now());
        if name == "setup" {
            let done = slurm();
            return self.verdict(name, started, Tally::default(), done);
        }
        match command_of(stage) {
            Ok(Ok(command)) => self.command(name, command),
            Ok(Err(why)) => self.skip(&format!("{name}: {why:#}")),
            Err(error) => self.verdict(name, started, Tally::default(), Err(error)),
        }
    }

    fn command(&mut self, name: &'static str, mut command: Command) {
        let started = Instant::now();
        let (mut tally, mut verdict) = self.tallied(name, &mut command);
        if verdict.is_err() && tally.may_try_again() {
            if !command.get_args().any(|word| word == "--") {
                command.arg("--");
            }
            command.args(&tally.failures).arg("--exact");
            let (second, again) = self.tallied(name, &mut command);
            verdict = again;
            tally.after(name, second);
        }
        self.verdict(name, started, tally, verdict);
    }

    /// Runs a stage's command, shows what it prints, and counts its tests.
    fn tallied(&mut self, name: &str, command: &mut Command) -> (Tally, Result<()>) {
        let words = command.get_args().map(|word| word.to_string_lossy());
        let words = words.collect::<Vec<_>>().join(" ");
        let words = words.rsplit(" cargo ").next().unwrap_or_default();
        self.say(&format!("\n=== {name}: cargo {words}"));
        let mut tally = Tally::default();
        let outcome = command::lines(command, LONGEST, |line| {
            self.say(line);
            tally.line(line);
        });
        let verdict = outcome.and_then(|status| match status.success() {
            true => Ok(()),
            false => bail!("{name} failed ({status})"),
        });
        (tally, verdict)
    }

    /// A stage that failed without a failing test counts as one.
    fn verdict(
        &mut self,
        name: &'static str,
        started: Instant,
        mut tally: Tally,
        verdict: Result<()>,
    ) {
        if let Err(error) = &verdict {
            self.say(&format!("{error:#}"));
            tally.failed = tally.failed.max(1);
        }
        self.tally.add(tally);
        self.stages.push(Outcome {
            name,
            took: started.elapsed(),
            passed: verdict.is_ok(),
        });
    }

    fn failed(&self, name: &str) -> bool {
        let mut stages = self.stages.iter();
        stages.any(|stage| stage.name == name && !stage.passed)
    }

    fn skip(&mut self, what: &str) {
        self.tally.skipped.push(what.replace('\n', " "));
    }

    fn end(self) -> ExitCode {
        println!();
        for stage in &self.stages {
            let minutes = stage.took.as_secs_f64() / 60.0;
            let word = if stage.passed { "ok" } else { "FAILED" };
            println!("{:<12} {minutes:>5.1} min  {word}", stage.name);
        }
        for skipped in &self.tally.skipped {
            println!("skipped: {skipped}");
        }
        for again in &self.tally.again {
            println!("passed at the second try, alone: {again}");
        }
        println!("{}", self.tally.summary());
        match self.tally.failed {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }
}

/// Some stages need more than cargo, which not every machine has; CI has it. The inner error says
/// what is missing.
fn command_of(stage: &Stage) -> Result<Result<Command>> {
    let made = match stage.name {
        "oldest-rust" => {
            let oldest = env!("CARGO_PKG_RUST_VERSION");
            let target = cargo::target_directory()?.join(stage.name);
            let command = cargo::by_toolchain(oldest, "check --locked --workspace");
            let command = command.with_context(|| format!("toolchain {oldest} is not installed"));
            // A directory of its own, because one compiler cannot use what another has built.
            command.map(|mut command| {
                command.env("CARGO_TARGET_DIR", target);
                command
            })
        }
        "aarch64" => programs::build(Machine::Arm, true),
        "deny" => deny("licenses bans sources").context("cargo-deny cannot be had"),
        "arm64-unit" => programs::portable(Machine::Arm, true, "test").and_then(|mut command| {
            let system = arm64()?;
            let emulator = system.join(EMULATOR);
            let runner = format!("{} -L {}", emulator.display(), system.display());
            command.args(EMULATED.split(' '));
            command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
            Ok(command)
        }),
        "vm" => match machine::system() {
            Ok(_) => {
                machine::packages()?;
                built("machine")
            }
            Err(missing) => Err(missing),
        },
        "docs" => site::prepare()
            .context("what makes the site cannot be had")
            .and_then(|()| built("docs")),
        "slurm-24.11" => {
            let root = cargo::target_directory()?.join("tmp/debian-trixie/root");
            if !root.is_dir() {
                return Ok(Err(anyhow!("the stage 'packages' has made no Debian 13")));
            }
            let mut command = system::in_system(&root)?;
            command.arg("--").args(NEWER.split(' '));
            Ok(command)
        }
        _ => Ok(cargo::words(stage.cargo)),
    };
    let mut command = match made {
        Ok(command) => command,
        missing => return Ok(missing),
    };
    match stage.name {
        "doc" => command.env("RUSTDOCFLAGS", "-D warnings"),
        "contract" => command.env("MPS_SUBJECT", "double"),
        _ => &mut command,
    };
    // More tests than processors: jobs and systems that boot mostly wait, and on the double's clock
    // a test does little else.
    let at_once = match stage.name {
        "mom" | "suite" | "packages" => Some(2),
        "contract" => Some(4),
        _ => None,
    };
    if let Some(at_once) = at_once {
        let processors = std::thread::available_parallelism();
        let threads = processors.map_or(at_once, |count| at_once * count.get());
        command.env("RUST_TEST_THREADS", threads.to_string());
    }
    Ok(Ok(command))
}

/// This program with a verb. The stage 'build' may have replaced its file.
fn built(verb: &str) -> Result<Command> {
    let program = cargo::target_directory()?.join("debug/xtask");
    Ok(command::command(&program.display().to_string(), verb))
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    /// Tests that failed, and stages that failed without running a test.
    failed: u64,
    /// Their names.
    failures: Vec<String>,
    /// What could not run on this machine, each with its reason.
    skipped: Vec<String>,
    /// Tests that failed beside the others and passed alone, each with its stage.
    again: Vec<String>,
}

impl Tally {
    /// A test program prints libtest's summary, `test NAME ... ignored, REASON`, or `skipped: NAME:
    /// REASON`; anything else counts nothing.
    fn line(&mut self, line: &str) {
        let test = line.strip_prefix("test ");
        let ignored = test.and_then(|rest| rest.split_once(" ... ignored"));
        let failed = test.and_then(|rest| rest.split_once(" ... FAILED"));
        if let Some((name, _)) = failed {
            self.failures.push(name.to_owned());
        }
        if let Some(rest) = line.strip_prefix("test result: ") {
            self.passed += number_before(rest, " passed;");
            self.failed += number_before(rest, " failed;");
        } else if let Some(rest) = line.strip_prefix("skipped: ") {
            self.skipped.push(rest.trim().to_owned());
        } else if let Some((name, rest)) = ignored {
            let reason = rest.trim_start_matches(',').trim();
            let reason = if reason.is_empty() { "ignored" } else { reason };
            self.skipped.push(format!("{name}: {reason}"));
        }
    }

    fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped);
        self.again.extend(other.again);
    }

    /// A run that was cut has no summary, or another count than names.
    fn may_try_again(&self) -> bool {
        let names = self.failures.len();
        (1..=MOST_AGAIN).contains(&names) && self.failed == names as u64
    }

    /// Adds the second try of the tests that failed: those that passed now are named.
    fn after(&mut self, stage: &str, second: Tally) {
        let passed = |name: &&String| !second.failures.contains(name);
        let again = self.failures.iter().filter(passed);
        self.again = again.map(|name| format!("{stage}: {name}")).collect();
        self.passed += self.again.len() as u64;
        self.failed = second.failed;
        self.failures = second.failures;
    }

    fn summary(&self) -> String {
        let mut text = format!("{} passed, {} failed", self.passed, self.failed);
        let (skipped, again) = (self.skipped.len(), self.again.len());
        for (count, what) in [(skipped, "skipped"), (again, "at the second try")] {
            if count > 0 {
                text += &format!(", {count} {what}");
            }
        }
        text
    }
}

fn number_before(text: &str, word: &str) -> u64 {
    let head = text.split_once(word);
    let head = head.and_then(|(head, _)| head.rsplit(' ').next());
    head.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(words: &[&str]) -> Result<Vec<&'static str>> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Ok(chosen(&words)?.iter().map(|stage| stage.name).collect())
    }

    #[test]
    fn a_stage_brings_what_it_needs_and_nothing_else_in_the_order_of_a_whole_run() {
        assert_eq!(names(&["mom"]).unwrap(), ["build", "mom"]);
        let slurm = names(&["slurm", "fmt"]).unwrap();
        assert_eq!(slurm, ["setup", "fmt", "build", "slurm"]);
        let all = names(&[]).unwrap();
        assert!(all.len() == 18 && names(&["moms"]).is_err());
        let at = |name: &str| all.iter().position(|one| *one == name);
        for stage in stages() {
            let earlier = stage.needs.iter().all(|needed| at(needed) < at(stage.name));
            assert!(earlier && !stage.what.is_empty(), "{}", stage.name);
        }
    }

    #[test]
    fn the_rest_is_shared_and_waits_for_what_it_needs() {
        let all: Vec<Stage> = stages().collect();
        let queue = Queue::new(&all);
        let next = |when| queue.next(when).unwrap();
        let own = |when| all.iter().filter(move |stage| stage.when == when);
        for (name, others) in AFTER {
            let are_waited_for = others.split(' ').all(|other| {
                let mut before = own("here").chain(own("beside"));
                before.any(|stage| stage.name == other)
            });
            let is_there = own("rest").any(|stage| stage.name == name);
            assert!(is_there && are_waited_for, "{name}");
        }
        let beside: Vec<_> = own("beside").map(|_| next("beside")).collect();
        assert!(beside.iter().all(|stage| stage.when == "beside"));
        assert_eq!(next("beside").name, "clippy");
        beside.iter().for_each(|stage| queue.end(stage));
        assert_eq!(next("here").name, "unit");
        assert_eq!(next("beside").name, "oldest-rust");
        queue.end(own("here").find(|stage| stage.name == "slurm").unwrap());
        assert_eq!(next("beside").name, "slurm-24.11");
        let left = std::iter::from_fn(|| queue.next("here"));
        let left: Vec<_> = left.map(|stage| stage.name).collect();
        let expected = "mom contract suite doc aarch64 arm64-unit docs deny";
        assert_eq!(left.join(" "), expected);
        assert!(queue.next("beside").is_none());
    }

    #[test]
    fn counts_summaries_and_names_what_is_skipped() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test a ... ok",
            "test b::c ... ignored, needs a GPU",
            "test d ... FAILED",
            "skipped: hardware: no /dev/nvidia0",
            "test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 2.00s",
        ] {
            tally.line(line);
        }
        let skipped = ["b::c: needs a GPU", "hardware: no /dev/nvidia0"];
        assert_eq!(tally.skipped, skipped);
        assert_eq!(tally.summary(), "41 passed, 1 failed, 2 skipped");
        assert_eq!(tally.failures, ["d"]);
        assert!(tally.may_try_again());
        tally.failures.push("e".to_owned());
        assert!(!tally.may_try_again(), "a run that was cut");
        tally.failures.pop();
        tally.after("suite", Tally::default());
        assert_eq!(tally.again, ["suite: d"]);
        let summary = "42 passed, 0 failed, 2 skipped, 1 at the second try";
        assert_eq!(tally.summary(), summary);
        let failed = || Tally {
            failed: 1,
            failures: vec!["d".to_owned()],
            ..Tally::default()
        };
        let mut twice = failed();
        twice.after("suite", failed());
        assert_eq!(twice.summary(), "0 passed, 1 failed");
        assert_eq!(Tally::default().summary(), "0 passed, 0 failed");
    }
}
