//! `cargo xtask soak`: many jobs at once on one simulated node, with random kills.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::{cargo, command};

/// Time for one job, with all that is repeated for it; a loaded machine of two cores needs a sixth of a second.
const CYCLE: Duration = Duration::from_secs(2);
/// Time for whatever the number of jobs.
const MARGIN: Duration = Duration::from_secs(120);

/// Jobs from prologue to epilogue on eight simulated GPUs; prologues, epilogues and the jobs' own processes are killed at
/// random. At the end no process, directory, lock, descriptor, mode or shared memory may be different.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Jobs from beginning to end
    #[arg(long, default_value_t = 2000)]
    cycles: u32,
    /// Jobs at once
    #[arg(long, default_value_t = 16)]
    at_once: u32,
    /// Where the dice begin: the same seed plays the same jobs
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs it.
pub fn run(options: &Options) -> Result<()> {
    cargo::build(&["build", "--workspace", "--lib", "--bins"])?;
    let target = cargo::metadata()?["target_directory"]
        .as_str()
        .map(PathBuf::from)
        .context("no target directory")?;
    let mut command = Command::new(target.join("debug/soak"));
    command.args([
        options.cycles.to_string(),
        options.at_once.to_string(),
        options.seed.to_string(),
    ]);
    let limit = CYCLE * options.cycles + MARGIN;
    let status = command::lines(&mut command, limit, |line| println!("{line}"))?;
    if !status.success() {
        bail!("something was lost ({status})");
    }
    Ok(())
}
