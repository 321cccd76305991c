//! `cargo xtask test`: everything that CI runs, stage by stage.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::tally::Tally;
use crate::install::slurm;
use crate::{cargo, command};

/// Longest that one stage may take. All of them are to fit into forty minutes on two cores; the workflow gives ninety,
/// for the first build and a slow network.
const STAGE: Duration = Duration::from_secs(1500);

/// What needs a GPU, and is a program of its own.
const HARDWARE: &str = "hardware: NVIDIA's own programs and a real GPU";

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
    report.cargo(
        "clippy",
        &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
        &[],
    );
    // The programs under test: the suites start them from the target directory.
    if report.cargo("build", &["build", "--workspace", "--all-targets"], &[]) {
        report.cargo("unit tests", &["test", "--workspace", "--lib", "--bins"], &[]);
        report.suites()?;
    }
    Ok(report.end())
}

impl Report {
    fn suites(&mut self) -> Result<()> {
        let why = match Path::new("/dev/nvidia0").exists() {
            true => "not part of this: run 'cargo xtask hardware'",
            false => "no /dev/nvidia0 on this machine; elsewhere: 'cargo xtask hardware'",
        };
        self.tally.skipped.push(format!("{HARDWARE}: {why}"));
        for target in cargo::test_targets(&cargo::metadata()?, "tests") {
            // The contract is tested on our double here, and on NVIDIA's program by `cargo xtask hardware`.
            let env: &[_] = if target == "contract" {
                &[("MPS_SUBJECT", "fake")]
            } else {
                &[]
            };
            self.cargo(&target, &["test", "--package", "tests", "--test", &target], env);
        }
        self.cargo(
            "packages",
            &["test", "--package", "xtask", "--test", "packages"],
            &[],
        );
        Ok(())
    }

    /// Runs one stage and shows it; whether it passed.
    fn cargo(&mut self, name: &str, arguments: &[&str], env: &[(&str, &str)]) -> bool {
        println!("\n=== {name}: cargo {}", arguments.join(" "));
        let started = Instant::now();
        let mut command: Command = cargo::command(arguments);
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
