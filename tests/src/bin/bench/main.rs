//! Benchmarks on simulated GPUs with recorded times; each result is JSON. `cargo xtask hardware`
//! measures on a real GPU.

mod scale;
mod srun;
mod unasked;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
const GPU: &str = "NVIDIA H200";

/// Measures on simulated GPUs.
#[derive(Parser)]
#[command(name = "bench")]
enum Arguments {
    /// Jobs and nodes at once against one, and directories of jobs that are gone.
    Scale {
        /// Rounds of each.
        #[arg(long, default_value_t = 10)]
        rounds: usize,
        /// Where the result goes.
        #[arg(long, default_value = "target/bench-scale.json")]
        out: PathBuf,
    },
    /// `srun true` with and without the plugin on the same Slurm, in turn.
    Srun {
        /// Pairs to measure with each setting of PrologFlags.
        #[arg(long, default_value_t = 100)]
        pairs: usize,
        /// Where the result goes.
        #[arg(long, default_value = "target/bench-srun.json")]
        out: PathBuf,
    },
    /// Processor time of a job that did not ask, in PBS' scripts and hook.
    Unasked {
        /// Rounds of each.
        #[arg(long, default_value_t = 100)]
        rounds: usize,
        /// Where the result goes.
        #[arg(long, default_value = "target/bench-unasked.json")]
        out: PathBuf,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    let (mut report, out): (Value, PathBuf) = match arguments {
        Arguments::Scale { rounds, out } => (scale::run(rounds)?, out),
        Arguments::Srun { pairs, out } => (srun::run(pairs)?, out),
        Arguments::Unasked { rounds, out } => (unasked::run(rounds)?, out),
    };
    report["cpus"] = std::thread::available_parallelism()?.get().into();
    if let Some(dir) = out.parent() {
        std::fs::create_dir_all(dir)?;
    }
    std::fs::write(&out, format!("{report:#}\n"))
        .with_context(|| format!("cannot write '{}'", out.display()))?;
    println!("the whole result: '{}'", out.display());
    Ok(())
}
