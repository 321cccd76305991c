//! `cargo xtask test`: everything that CI runs, stage by stage.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::tally::{Gaps, Tally};
use crate::install::{arm64, deny, slurm};
use crate::package::machine::Machine;
use crate::package::programs::{self, Profile};
use crate::reliability::matrices;
use crate::{cargo, command, site};

/// Longest that one stage may take. All of them are to fit into thirty minutes on two cores; the workflow gives ninety,
/// for the first build and a slow network.
const STAGE: Duration = Duration::from_secs(1500);

/// What needs a GPU, and is a program of its own.
const HARDWARE: &str = "hardware: NVIDIA's own programs and a real GPU";

/// Every target of the workspace, with the dependencies of Cargo.lock.
const ALL: &[&str] = &["--locked", "--workspace", "--all-targets"];

/// The unit tests that an emulator runs: what reckons, and takes no minute under it. The rest reads the system's files, or asks the
/// kernel, which stays this machine's; programs of the packages' tests do that.
const EMULATED: [&str; 9] = [
    "--lib",
    "-p",
    "mpsd-core",
    "--",
    "environment::",
    "gpu::",
    "job::",
    "limits::",
    "step::",
];

/// The cells that run on Debian 13's Slurm as well, below three minutes: half of the site matrix's clusters, with PrologFlags of
/// every kind, and all that depends on where Slurm is.
const NEWER: [&str; 3] = ["constrained", "configless", "stack"];

struct Stage {
    name: String,
    took: Duration,
    passed: bool,
}

#[derive(Default)]
struct Report {
    stages: Vec<Stage>,
    tally: Tally,
}

/// Runs all stages, whatever fails, and ends with one line of counts.
pub fn run() -> Result<ExitCode> {
    let mut report = Report::default();
    let started = Instant::now();
    slurm::run()?;
    report.note("setup", started, true);
    report.cargo("fmt", &["fmt", "--all", "--check"], &[]);
    let clippy = [&["clippy"], ALL, &["--", "-D", "warnings"]].concat();
    report.cargo("clippy", &clippy, &[]);
    let doc = [
        "doc",
        "--locked",
        "--workspace",
        "--no-deps",
        "--document-private-items",
    ];
    report.cargo("doc", &doc, &[("RUSTDOCFLAGS", "-D warnings")]);
    report.elsewhere()?;
    // The programs under test: the suites start them from the target directory.
    if report.cargo("build", &[&["build"], ALL].concat(), &[]) {
        report.cargo(
            "unit tests",
            &["test", "--locked", "--workspace", "--lib", "--bins"],
            &[],
        );
        report.suites()?;
        report.known_gaps();
        report.site();
    }
    Ok(report.end())
}

impl Report {
    /// What needs a part of the toolchain that not every machine has; CI has all of them, each in a job of its own.
    fn elsewhere(&mut self) -> Result<()> {
        let oldest = cargo::oldest_rust()?;
        let target = cargo::target_directory()?
            .join("oldest-rust")
            .display()
            .to_string();
        match cargo::by_toolchain(&oldest, &[&["check"], ALL].concat()) {
            // A directory of its own: what another compiler built is of no use to this one.
            Some(command) => {
                self.command("oldest rust", command, &[("CARGO_TARGET_DIR", &target)]);
            }
            None => self.skip(&format!("oldest rust: toolchain {oldest} is not installed")),
        }
        // What the packages' tests pack and run.
        match programs::build(Profile::Quick, Machine::Arm) {
            Ok(command) => drop(self.command("aarch64", command, &[])),
            Err(why) => self.skip(&format!("aarch64: {why:#}").replace('\n', " ")),
        }
        // Advisories change by themselves: CI looks at them.
        match deny::command(&["check", "licenses", "bans", "sources"]) {
            Ok(command) => drop(self.command("deny", command, &[])),
            Err(why) => self.skip(&format!("deny: cargo-deny cannot be had: {why:#}").replace('\n', " ")),
        }
        Ok(())
    }

    /// Tests of what is not done yet: `#[ignore = "known gap: ..."]`. Each must fail, or it is no gap any more.
    fn known_gaps(&mut self) {
        let arguments = [
            "test",
            "--locked",
            "--package",
            "tests",
            "--test",
            "suite",
            "--",
            "--ignored",
        ];
        println!("\n=== known gaps: cargo {}", arguments.join(" "));
        let started = Instant::now();
        let mut gaps = Gaps::default();
        let outcome = command::lines(&mut cargo::command(&arguments), STAGE, |line| gaps.line(line));
        let verdict = outcome.and_then(|_| gaps.verdict());
        match &verdict {
            Ok(open) => println!("{open} open"),
            Err(error) => {
                println!("{error:#}");
                self.tally.failed += 1;
            }
        }
        self.note("known gaps", started, verdict.is_ok());
    }

    /// The documentation's site: its links lead somewhere.
    fn site(&mut self) {
        if let Err(why) = site::prepare() {
            return self
                .skip(&format!("docs: what makes the site cannot be had: {why:#}").replace('\n', " "));
        }
        println!("\n=== docs: cargo xtask docs");
        let started = Instant::now();
        let made = site::run(&site::Options::into_dir("target/site"));
        if let Err(error) = &made {
            println!("{error:#}");
            self.tally.failed += 1;
        }
        self.note("docs", started, made.is_ok());
    }

    fn skip(&mut self, what: &str) {
        self.tally.skipped.push(what.to_owned());
    }

    fn suites(&mut self) -> Result<()> {
        let why = match Path::new("/dev/nvidia0").exists() {
            true => "not part of this: run 'cargo xtask hardware'",
            false => "no /dev/nvidia0 on this machine; elsewhere: 'cargo xtask hardware'",
        };
        self.skip(&format!("{HARDWARE}: {why}"));
        // A job under a mom waits for most of its time: two tests for each processor.
        let threads = std::thread::available_parallelism().map_or(2, |count| 2 * count.get());
        let threads = threads.to_string();
        for target in cargo::test_targets(&cargo::metadata()?, "tests") {
            let env: &[_] = match target.as_str() {
                // The contract is tested on our double here, and on NVIDIA's program by `cargo xtask hardware`.
                "contract" => &[("MPS_SUBJECT", "fake")],
                "mom" => &[("RUST_TEST_THREADS", &threads)],
                _ => &[],
            };
            self.cargo(
                &target,
                &["test", "--locked", "--package", "tests", "--test", &target],
                env,
            );
        }
        self.cargo(
            "packages",
            &["test", "--locked", "--package", "xtask", "--test", "packages"],
            &[],
        );
        self.emulated();
        self.newer_slurm()
    }

    /// Unit tests for the other architecture, by the emulator of the system that its packages were tried on.
    fn emulated(&mut self) {
        let made = programs::portable(Profile::Quick, Machine::Arm, "test")
            .and_then(|command| Ok((command, arm64::system()?)));
        let (mut command, system) = match made {
            Ok(made) => made,
            Err(why) => return self.skip(&format!("arm64's unit tests: {why:#}").replace('\n', " ")),
        };
        let emulator = system.join(arm64::EMULATOR);
        let runner = format!("{} -L {}", emulator.display(), system.display());
        command
            .args(EMULATED)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
        self.command("arm64 units", command, &[]);
    }

    /// Cells on the Slurm of Debian 13, in the system that the packages were tried on.
    fn newer_slurm(&mut self) -> Result<()> {
        let system = cargo::target_directory()?.join("tmp/debian-trixie/root");
        if !system.is_dir() {
            self.skip("Slurm 24.11: the packages' tests could make no Debian 13");
            return Ok(());
        }
        let mut command = matrices::in_system(&system)?;
        command.arg("--").args(NEWER);
        self.command("Slurm 24.11", command, &[]);
        Ok(())
    }

    /// Runs one stage and shows it; whether it passed.
    fn cargo(&mut self, name: &str, arguments: &[&str], env: &[(&str, &str)]) -> bool {
        self.command(name, cargo::command(arguments), env)
    }

    fn command(&mut self, name: &str, mut command: Command, env: &[(&str, &str)]) -> bool {
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        let words = words.join(" ");
        println!(
            "\n=== {name}: cargo {}",
            words.rsplit(" cargo ").next().unwrap_or_default()
        );
        let started = Instant::now();
        command.envs(env.iter().copied());
        let mut tally = Tally::default();
        let outcome = command::lines(&mut command, STAGE, |line| {
            println!("{line}");
            tally.line(line);
        });
        let passed = match &outcome {
            Ok(status) => status.success(),
            Err(error) => {
                println!("{error:#}");
                false
            }
        };
        if !passed && tally.failed == 0 {
            tally.failed = 1;
        }
        self.tally.add(tally);
        self.note(name, started, passed);
        passed
    }

    fn note(&mut self, name: &str, started: Instant, passed: bool) {
        self.stages.push(Stage {
            name: name.to_owned(),
            took: started.elapsed(),
            passed,
        });
    }

    fn end(self) -> ExitCode {
        println!();
        for stage in &self.stages {
            let minutes = stage.took.as_secs_f64() / 60.0;
            println!(
                "{:<12} {minutes:>5.1} min  {}",
                stage.name,
                if stage.passed { "ok" } else { "FAILED" }
            );
        }
        for skipped in &self.tally.skipped {
            println!("skipped: {skipped}");
        }
        println!("{}", self.tally.summary());
        let passed = self.stages.iter().all(|stage| stage.passed) && self.tally.failed == 0;
        if passed {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}
