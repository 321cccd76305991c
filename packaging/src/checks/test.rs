//! `cargo xtask test`: everything that CI runs, stage by stage; `cargo xtask test STAGE...`: these alone.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::tally::Tally;
use crate::install::{arm64, deny, slurm};
use crate::package::machine::Machine;
use crate::package::programs::{self, Profile};
use crate::reliability::matrices;
use crate::{cargo, command, site};

/// Longest that one stage may take. All of them are to fit into thirty minutes on two cores; the workflow gives ninety,
/// for the first build and a slow network.
const LONGEST: Duration = Duration::from_secs(1500);

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

/// What procps or systemd sets on every booted Debian: the kernel then refuses O_CREAT of another user's file in a directory like
/// /tmp. A site's nodes have it, so the tests have to run with it.
const BOOTED: [(&str, &str); 3] = [
    ("protected_regular", "2"),
    ("protected_fifos", "2"),
    ("protected_symlinks", "1"),
];

/// A part of CI.
#[derive(Clone, Copy)]
struct Stage {
    name: &'static str,
    what: &'static str,
    /// The stages that it needs done before.
    needs: &'static [&'static str],
    run: fn(&mut Report, &'static str) -> Result<()>,
}

/// In the order of a whole run.
const STAGES: [Stage; 17] = [
    stage(
        "setup",
        "installs Slurm and munge where they are missing",
        &[],
        |report, name| {
            let started = Instant::now();
            slurm::run()?;
            report.note(name, started, true);
            Ok(())
        },
    ),
    stage("fmt", "cargo fmt --check", &[], |report, name| {
        report.cargo(name, &["fmt", "--all", "--check"], &[])
    }),
    stage(
        "clippy",
        "cargo clippy, warnings are errors",
        &[],
        |report, name| report.cargo(name, &[&["clippy"], ALL, &["--", "-D", "warnings"]].concat(), &[]),
    ),
    stage("doc", "cargo doc, warnings are errors", &[], |report, name| {
        let words = [
            "doc",
            "--locked",
            "--workspace",
            "--no-deps",
            "--document-private-items",
        ];
        report.cargo(name, &words, &[("RUSTDOCFLAGS", "-D warnings")])
    }),
    stage(
        "oldest-rust",
        "cargo check by the oldest Rust of Cargo.toml",
        &[],
        Report::oldest_rust,
    ),
    stage(
        "aarch64",
        "builds what is shipped for aarch64",
        &[],
        Report::aarch64,
    ),
    stage(
        "deny",
        "licences, sources and versions of the dependencies",
        &[],
        Report::deny,
    ),
    stage(
        "build",
        "all programs and tests: the others start them",
        &[],
        |report, name| report.cargo(name, &[&["build"], ALL].concat(), &[]),
    ),
    stage(
        "unit",
        "the unit tests of all crates",
        &["build"],
        |report, name| report.cargo(name, &["test", "--locked", "--workspace", "--lib", "--bins"], &[]),
    ),
    stage(
        "mom",
        "the installed files under simulated moms of Torque and OpenPBS",
        &["build"],
        |report, name| {
            // A job under a mom waits for most of its time: two tests for each processor.
            let threads = std::thread::available_parallelism().map_or(2, |count| 2 * count.get());
            report.tests(name, &[("RUST_TEST_THREADS", &threads.to_string())])
        },
    ),
    stage(
        "contract",
        "what is relied on of NVIDIA's daemon, on its double",
        &["build"],
        |report, name| report.tests(name, &[("MPS_SUBJECT", "fake")]),
    ),
    stage(
        "suite",
        "whole programs on simulated nodes: crashes, kills, faults, hostile users",
        &["build"],
        |report, name| report.tests(name, &[]),
    ),
    stage(
        "slurm",
        "jobs on a real Slurm with simulated GPUs",
        &["setup", "build"],
        |report, name| report.tests(name, &[]),
    ),
    stage(
        "packages",
        "the packages, on systems that boot",
        &["build"],
        |report, name| {
            report.cargo(
                name,
                &["test", "--locked", "--package", "xtask", "--test", "packages"],
                &[],
            )
        },
    ),
    stage(
        "arm64-unit",
        "unit tests for aarch64, by an emulator",
        &[],
        Report::emulated,
    ),
    stage(
        "slurm-24.11",
        "cells on Debian 13's Slurm, in the system that 'packages' made",
        &["build"],
        Report::newer_slurm,
    ),
    stage(
        "docs",
        "the documentation's site, each link followed",
        &["build"],
        Report::site,
    ),
];

const fn stage(
    name: &'static str,
    what: &'static str,
    needs: &'static [&'static str],
    run: fn(&mut Report, &'static str) -> Result<()>,
) -> Stage {
    Stage {
        name,
        what,
        needs,
        run,
    }
}

/// Runs everything that CI runs, or these stages and what they need.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Name the stages and run none
    #[arg(long)]
    list: bool,
    /// Run these stages alone, each as CI does
    #[arg(value_name = "STAGE")]
    stages: Vec<String>,
}

/// Runs the stages, whatever fails, and ends with one line of counts.
pub fn run(options: &Options) -> Result<ExitCode> {
    if options.list {
        for stage in STAGES {
            println!("{:<12} {}", stage.name, stage.what);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut report = Report::default();
    if options.stages.is_empty() {
        report.skip(&hardware());
    }
    report.tally.skipped.extend(unlike_booted());
    for stage in chosen(&options.stages)? {
        match stage.needs.iter().find(|needed| report.failed(needed)) {
            Some(needed) => report.skip(&format!("{}: '{needed}' failed", stage.name)),
            None => (stage.run)(&mut report, stage.name)?,
        }
    }
    Ok(report.end())
}

/// The stages of these names with those that they need, in order; all of them where none is named.
fn chosen(names: &[String]) -> Result<Vec<Stage>> {
    let mut wanted = Vec::new();
    for name in names {
        let known = STAGES.iter().find(|stage| stage.name == name);
        let stage = known.with_context(|| format!("no stage '{name}': see 'cargo xtask test --list'"))?;
        wanted.extend(stage.needs.iter().chain([&stage.name]));
    }
    let is_wanted = |stage: &Stage| names.is_empty() || wanted.contains(&stage.name);
    Ok(STAGES.into_iter().filter(is_wanted).collect())
}

/// What needs a GPU, and is a program of its own.
fn hardware() -> String {
    let why = match Path::new("/dev/nvidia0").exists() {
        true => "not part of this: run 'cargo xtask hardware'",
        false => "no /dev/nvidia0 on this machine; elsewhere: 'cargo xtask hardware'",
    };
    format!("hardware: NVIDIA's own programs and a real GPU: {why}")
}

/// The settings of [`BOOTED`] that this machine lacks. They are the whole machine's, so nothing here changes them: `.ci/run` does.
fn unlike_booted() -> Vec<String> {
    let lacking = |(name, value): &(&str, &str)| {
        let set = fs::read_to_string(format!("/proc/sys/fs/{name}")).unwrap_or_default();
        (set.trim() != *value).then(|| {
            format!(
                "fs.{name}={value}, as on a booted Debian: it is '{}' here",
                set.trim()
            )
        })
    };
    BOOTED.iter().filter_map(lacking).collect()
}

struct Done {
    name: &'static str,
    took: Duration,
    passed: bool,
}

#[derive(Default)]
struct Report {
    stages: Vec<Done>,
    tally: Tally,
}

impl Report {
    /// This and the next two need a part of the toolchain that not every machine has; CI has all of them, each in a job of its own.
    fn oldest_rust(&mut self, name: &'static str) -> Result<()> {
        let oldest = cargo::oldest_rust()?;
        // A directory of its own: what another compiler built is of no use to this one.
        let target = cargo::target_directory()?.join(name).display().to_string();
        match cargo::by_toolchain(&oldest, &[&["check"], ALL].concat()) {
            Some(command) => self.command(name, command, &[("CARGO_TARGET_DIR", &target)]),
            None => {
                self.skip(&format!("{name}: toolchain {oldest} is not installed"));
                Ok(())
            }
        }
    }

    /// What the packages' tests pack and run.
    fn aarch64(&mut self, name: &'static str) -> Result<()> {
        self.command_or_skip(name, programs::build(Profile::Quick, Machine::Arm))
    }

    /// Advisories change by themselves: CI looks at them.
    fn deny(&mut self, name: &'static str) -> Result<()> {
        let command = deny::command(&["check", "licenses", "bans", "sources"]);
        self.command_or_skip(name, command.context("cargo-deny cannot be had"))
    }

    /// In the system that the packages were tried on, by its emulator.
    fn emulated(&mut self, name: &'static str) -> Result<()> {
        let made = programs::portable(Profile::Quick, Machine::Arm, "test").and_then(|mut command| {
            let system = arm64::system()?;
            let emulator = system.join(arm64::EMULATOR);
            let runner = format!("{} -L {}", emulator.display(), system.display());
            command
                .args(EMULATED)
                .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
            Ok(command)
        });
        self.command_or_skip(name, made)
    }

    fn newer_slurm(&mut self, name: &'static str) -> Result<()> {
        let system = cargo::target_directory()?.join("tmp/debian-trixie/root");
        if !system.is_dir() {
            self.skip(&format!("{name}: the stage 'packages' has made no Debian 13"));
            return Ok(());
        }
        let mut command = matrices::in_system(&system)?;
        command.arg("--").args(NEWER);
        self.command(name, command, &[])
    }

    fn site(&mut self, name: &'static str) -> Result<()> {
        if let Err(why) = site::prepare() {
            self.skip(&format!("{name}: what makes the site cannot be had: {why:#}"));
            return Ok(());
        }
        println!("\n=== {name}: cargo xtask docs");
        let started = Instant::now();
        let made = site::run(&site::Options::into_dir("target/site"));
        self.verdict(name, started, Tally::default(), made);
        Ok(())
    }

    /// A test program of the package `tests`.
    fn tests(&mut self, name: &'static str, env: &[(&str, &str)]) -> Result<()> {
        self.cargo(
            name,
            &["test", "--locked", "--package", "tests", "--test", name],
            env,
        )
    }

    fn cargo(&mut self, name: &'static str, arguments: &[&str], env: &[(&str, &str)]) -> Result<()> {
        self.command(name, cargo::command(arguments), env)
    }

    fn command_or_skip(&mut self, name: &'static str, command: Result<Command>) -> Result<()> {
        match command {
            Ok(command) => self.command(name, command, &[]),
            Err(why) => {
                self.skip(&format!("{name}: {why:#}"));
                Ok(())
            }
        }
    }

    /// Runs one stage and shows it.
    fn command(&mut self, name: &'static str, mut command: Command, env: &[(&str, &str)]) -> Result<()> {
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        let words = words.join(" ");
        println!(
            "\n=== {name}: cargo {}",
            words.rsplit(" cargo ").next().unwrap_or_default()
        );
        let started = Instant::now();
        command.envs(env.iter().copied());
        let mut tally = Tally::default();
        let outcome = command::lines(&mut command, LONGEST, |line| {
            println!("{line}");
            tally.line(line);
        });
        let verdict = outcome.and_then(|status| match status.success() {
            true => Ok(()),
            false => bail!("{name} failed ({status})"),
        });
        self.verdict(name, started, tally, verdict);
        Ok(())
    }

    /// A stage that failed without a failing test counts as one.
    fn verdict(&mut self, name: &'static str, started: Instant, mut tally: Tally, verdict: Result<()>) {
        if let Err(error) = &verdict {
            println!("{error:#}");
            tally.failed = tally.failed.max(1);
        }
        self.tally.add(tally);
        self.note(name, started, verdict.is_ok());
    }

    fn note(&mut self, name: &'static str, started: Instant, passed: bool) {
        self.stages.push(Done {
            name,
            took: started.elapsed(),
            passed,
        });
    }

    fn failed(&self, name: &str) -> bool {
        self.stages
            .iter()
            .any(|stage| stage.name == name && !stage.passed)
    }

    fn skip(&mut self, what: &str) {
        self.tally.skipped.push(what.replace('\n', " "));
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
        assert_eq!(
            names(&["slurm", "fmt"]).unwrap(),
            ["setup", "fmt", "build", "slurm"]
        );
        assert_eq!(names(&[]).unwrap().len(), STAGES.len());
        assert!(names(&["moms"]).is_err());
    }

    #[test]
    fn what_a_stage_needs_comes_before_it() {
        let at = |name: &str| STAGES.iter().position(|stage| stage.name == name);
        for stage in STAGES {
            assert!(
                stage.needs.iter().all(|needed| at(needed) < at(stage.name)),
                "{}",
                stage.name
            );
        }
    }
}
