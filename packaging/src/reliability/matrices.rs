//! `cargo xtask matrices`: the crash, kill and fault matrices alone, and how much they tried.

use std::time::Duration;

use anyhow::{Result, bail};

use super::figures::Figures;
use super::readme;
use crate::{cargo, command};

/// Longest that all of them may take.
const LONGEST: Duration = Duration::from_secs(1500);
/// The suite's modules with figures.
const MODULES: [&str; 7] = [
    "crash::",
    "evidence::",
    "hostile::",
    "kills::",
    "faults::",
    "scarce::",
    "supervision::",
];

/// Runs the crash, kill and fault matrices, which are part of `cargo xtask test` too.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Write the figures to tests/reliability/figures.toml
    #[arg(long)]
    record: bool,
}

/// Runs them.
pub fn run(options: &Options) -> Result<()> {
    cargo::build(&["build", "--workspace", "--lib", "--bins"])?;
    let mut arguments = vec!["test", "--package", "tests", "--test", "suite", "--"];
    arguments.extend(MODULES);
    arguments.push("--nocapture");
    let mut figures = Figures::default();
    let status = command::lines(&mut cargo::command(&arguments), LONGEST, |line| {
        println!("{line}");
        figures.line(line);
    })?;
    print!("{}", figures.text());
    if !status.success() {
        bail!("a matrix failed ({status})");
    }
    if options.record {
        readme::publish(&figures, &cargo::root()?, "matrices")?;
    }
    Ok(())
}
