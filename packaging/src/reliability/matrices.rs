//! `cargo xtask matrices`: the crash, kill and fault matrices alone, and how much they tried. `cargo xtask matrix slurm`: the
//! site matrix alone.

use std::path::PathBuf;
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

/// A matrix of its own.
#[derive(Debug, clap::Subcommand)]
pub enum Matrix {
    /// Jobs of every kind on clusters of every kind, with MPS, without, and without the plugin.
    Slurm {
        /// The Slurm to run, as 'make install' laid it out [default: the machine's own]
        #[arg(long)]
        prefix: Option<PathBuf>,
        /// Name the cells and run none
        #[arg(long)]
        list: bool,
        /// Run the cells whose names hold one of these words
        #[arg(default_values_t = ["site_matrix::".to_owned()])]
        cells: Vec<String>,
    },
}

impl Matrix {
    /// Whether it needs the machine's own Slurm.
    pub fn needs_slurm(&self) -> bool {
        let Matrix::Slurm { prefix, list, .. } = self;
        prefix.is_none() && !list
    }
}

/// Runs one.
pub fn run_one(matrix: &Matrix) -> Result<()> {
    let Matrix::Slurm { prefix, list, cells } = matrix;
    cargo::build(&["build", "--workspace", "--lib", "--bins"])?;
    let mut run = cargo::command(&["test", "--package", "tests", "--test", "slurm", "--"]);
    run.args(cells);
    if let Some(prefix) = prefix {
        run.arg("--prefix").arg(prefix);
    }
    if *list {
        run.arg("--list");
    }
    let status = command::lines(&mut run, LONGEST, |line| println!("{line}"))?;
    if !status.success() {
        bail!("the matrix failed ({status})");
    }
    Ok(())
}
