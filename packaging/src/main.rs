//! `cargo xtask`: what would otherwise be a folder of shell scripts.
//!
//! | verb | does |
//! |---|---|
//! | `setup` | installs Slurm and munge through the system's package manager, once; with `--arm64` lays out a Debian for arm64 instead |
//! | `demo` | README's first command: one MPS job on a throw-away Slurm, watched; on simulated moms with `--scheduler` |
//! | `test` | README's second command: everything that CI runs, or the stages that are named |
//! | `matrices` | the crash, kill and fault matrices alone, and how much they tried |
//! | `matrix slurm` | jobs of every kind on throw-away Slurms of every kind; `--prefix` for another Slurm |
//! | `soak` | 2,000 jobs, 16 at once, with random kills |
//! | `fuzz` | a minute of libFuzzer on each place where foreign text comes in |
//! | `hardware` | the project against a real GPU, or a package for a machine without cargo |
//! | `texts` | writes the quick start's table of options and the commented mpsd.toml from the tables in `mpsd/core` |
//! | `docs` | the documentation's site, every link of it followed |
//! | `stage DIR` | the tree that is installed |
//! | `spank-variants` | one linked plugin, stamped for each release of Slurm |
//! | `dist` | the packages for Debian and RPM systems, from that tree, for x86_64 and arm64 |
//! | `release-check` | what must hold before a version gets its tag |
//! | `bench scale` | what jobs, clients and nodes at once cost one another |
//! | `bench srun` | what the plugin costs a job that did not ask for it |

mod cargo;
mod checks;
mod command;
mod install;
mod package;
mod progress;
mod reliability;
mod site;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};

use checks::{hardware, release, test};
use install::{arm64, slurm};
use package::{plugin, stage};
use reliability::{fuzz, matrices, soak};

/// Builds, shows, tests and measures mpsd.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Install what the tests need and is missing: Slurm and munge.
    Setup {
        /// Only the system that arm64's packages are tried on: print its directory.
        #[arg(long)]
        arm64: bool,
    },
    /// Show one MPS job on a throw-away two-node Slurm, with this machine's GPUs or simulated ones.
    Demo {
        /// Torque or OpenPBS instead: simulated moms and GPUs
        #[arg(long, default_value = "slurm", value_parser = ["slurm", "torque", "openpbs"])]
        scheduler: String,
    },
    /// Run everything that CI runs, or single stages of it.
    Test(test::Options),
    /// Run the crash, kill and fault matrices alone, and say how much they tried.
    Matrices,
    /// Run one matrix, or cells of it, alone.
    #[command(subcommand)]
    Matrix(matrices::Matrix),
    /// Run many jobs at once on a simulated node, with random kills; nothing may be different at the end.
    Soak(soak::Options),
    /// Run every fuzz target under libFuzzer.
    Fuzz(fuzz::Options),
    /// Run the project against the GPU of this machine, or pack it for a machine without cargo.
    Hardware(hardware::Options),
    /// Write what the tables of options and keys say into docs/quick-start.md and etc/mpsd/mpsd.toml.
    Texts,
    /// Make the documentation's site, and follow its links.
    Docs(site::Options),
    /// Lay out the tree that is installed, below a directory.
    Stage(stage::Options),
    /// Stamp one linked plugin for each release of Slurm.
    SpankVariants(plugin::Options),
    /// Make the packages for Debian and RPM systems.
    Dist(package::Options),
    /// Check what must hold before a version gets its tag.
    ReleaseCheck(release::Options),
    /// Measure.
    #[command(subcommand)]
    Bench(Bench),
}

impl Verb {
    /// Building and packing does not, unless a tool has to be installed first.
    fn needs_root(&self) -> bool {
        !matches!(
            self,
            Verb::Texts
                | Verb::Docs(_)
                | Verb::Stage(_)
                | Verb::SpankVariants(_)
                | Verb::Dist(_)
                | Verb::ReleaseCheck(_)
        )
    }
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// One job's begin and end, and one that did not ask, against the shortest possible, on a simulated GPU.
    Job {
        /// Rounds of each side.
        #[arg(long, default_value_t = 20)]
        rounds: u32,
        /// Another build's programs, to be measured in turn with these.
        #[arg(long, value_name = "DIRECTORY")]
        beside: Option<std::path::PathBuf>,
        /// Where the result goes, as JSON.
        #[arg(long, default_value = "target/bench-job.json")]
        out: std::path::PathBuf,
    },
    /// Jobs, clients and nodes at once against one.
    Scale {
        /// Rounds of each.
        #[arg(long, default_value_t = 10)]
        rounds: u32,
        /// Where the result goes, as JSON.
        #[arg(long, default_value = "target/bench-scale.json")]
        out: std::path::PathBuf,
    },
    /// `srun true` with and without the plugin on the same Slurm, in turn.
    Srun {
        /// Pairs to measure.
        #[arg(long, default_value_t = 100)]
        pairs: u32,
        /// Where the result goes, as JSON.
        #[arg(long, default_value = "target/bench-srun.json")]
        out: std::path::PathBuf,
    },
}

/// What the benchmark starts: the product and the doubles, and nothing that only packages need.
const MEASURED: &[&str] = &[
    "build",
    "--release",
    "--lib",
    "--bins",
    "-p",
    "spank",
    "-p",
    "prologue",
    "-p",
    "epilogue",
    "-p",
    "mpsd",
    "-p",
    "nvml-stub",
    "-p",
    "container-stub",
    "-p",
    "tests",
];

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.verb.needs_root() && !nix::unistd::geteuid().is_root() {
        bail!(
            "this needs root: it starts a Slurm whose jobs run as other users; use 'sudo -E cargo xtask …'"
        );
    }
    std::env::set_current_dir(cargo::root()?)?;
    match &arguments.verb {
        Verb::Setup { arm64: false } => slurm::run().map(|()| ExitCode::SUCCESS),
        Verb::Setup { arm64: true } => {
            println!("{}", arm64::system()?.display());
            Ok(ExitCode::SUCCESS)
        }
        Verb::Test(options) => test::run(options),
        Verb::Matrices => matrices::run().map(|()| ExitCode::SUCCESS),
        Verb::Matrix(matrix) => {
            if matrix.needs_slurm() {
                slurm::run()?;
            }
            matrices::run_one(matrix).map(|()| ExitCode::SUCCESS)
        }
        Verb::Soak(options) => soak::run(options).map(|()| ExitCode::SUCCESS),
        Verb::Fuzz(options) => fuzz::run(options).map(|()| ExitCode::SUCCESS),
        Verb::Texts => {
            cargo::build(&["run", "--package", "manual", "--", "--texts", "."]).map(|()| ExitCode::SUCCESS)
        }
        Verb::Docs(options) => site::run(options).map(|()| ExitCode::SUCCESS),
        Verb::Stage(options) => stage::run(options).map(|()| ExitCode::SUCCESS),
        Verb::SpankVariants(options) => plugin::run(options).map(|()| ExitCode::SUCCESS),
        Verb::Dist(options) => package::run(options).map(|()| ExitCode::SUCCESS),
        Verb::Hardware(options) => hardware::run(&cargo::root()?, options).map(|()| ExitCode::SUCCESS),
        Verb::ReleaseCheck(options) => release::run(options).map(|()| ExitCode::SUCCESS),
        Verb::Demo { scheduler } => {
            if scheduler == "slurm" {
                slurm::run()?;
            }
            cargo::build(&["build", "--workspace"])?;
            cargo::become_program("demo", &["--scheduler", scheduler])
        }
        Verb::Bench(Bench::Scale { rounds, out }) => {
            slurm::run()?;
            cargo::build(MEASURED)?;
            let out = out.display().to_string();
            cargo::become_program("bench-scale", &["--rounds", &rounds.to_string(), "--out", &out])
        }
        Verb::Bench(Bench::Job { rounds, beside, out }) => {
            cargo::build(MEASURED)?;
            let (rounds, out) = (rounds.to_string(), out.display().to_string());
            let beside = beside.as_ref().map(|dir| dir.display().to_string());
            let mut arguments = vec!["--rounds", &rounds, "--out", &out];
            arguments.extend(beside.iter().flat_map(|dir| ["--beside", dir]));
            cargo::become_program("bench-job", &arguments)
        }
        Verb::Bench(Bench::Srun { pairs, out }) => {
            slurm::run()?;
            cargo::build(MEASURED)?;
            let out = out.display().to_string();
            cargo::become_program("bench-srun", &["--pairs", &pairs.to_string(), "--out", &out])
        }
    }
}
