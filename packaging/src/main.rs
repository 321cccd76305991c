//! `cargo xtask`, in place of a folder of shell scripts. `cargo xtask help` lists the verbs.

mod cargo;
mod command;
mod files;
mod hardware;
mod install;
mod machine;
mod package;
mod release_check;
mod site;
mod system;
mod test;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};
use nix::sys::stat::{Mode, umask};

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
    /// Show one MPS job on a throw-away Slurm of two nodes with simulated GPUs.
    Demo,
    /// Run all tests, or single stages
    Test(test::Options),
    /// Run many jobs at once on a simulated node, with random kills; nothing may be different at
    /// the end
    Soak {
        /// Jobs, jobs at once, and where the dice begin: the same seed plays the same jobs
        #[arg(value_name = "NUMBER")]
        numbers: Vec<String>,
    },
    /// Run the project against the GPU of this machine, or pack it for a machine without cargo.
    Hardware(hardware::Options),
    /// Write what the tables of options, keys, errors, programs and advice say into the pages and
    /// etc/mpsd/mpsd.toml.
    Texts,
    /// Make the documentation's site, and follow its links.
    Docs,
    /// Make the packages for Debian and RPM systems.
    Dist(package::Options),
    /// Check what must hold before a version gets its tag.
    ReleaseCheck(release_check::Options),
    /// Run cells in virtual machines, as 'test vm' does, or cut their power.
    Machine(machine::Options),
    /// Measure a job, many at once, or what a job that did not ask pays: 'job', 'scale', 'srun' or
    /// 'unasked', each with '--help'.
    #[command(disable_help_flag = true)]
    Bench {
        /// What is measured, and its options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

impl Verb {
    /// Building and packing does not, unless a tool has to be installed first.
    fn needs_root(&self) -> bool {
        use Verb::{Dist, Docs, ReleaseCheck, Texts};
        !matches!(self, Texts | Docs | Dist(_) | ReleaseCheck(_))
    }
}

/// What the benchmark starts: the product and the doubles, without what only packages need.
const MEASURED: &str = "build --release --lib --bins -p spank -p prologue -p epilogue -p mpsd -p mpsd-ctl -p runner -p nvml-double \
                        -p container-double -p tests";

fn main() -> ExitCode {
    match run(&Arguments::parse().verb) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: &Verb) -> Result<ExitCode> {
    if verb.needs_root() && !nix::unistd::geteuid().is_root() {
        bail!(
            "this needs root: it starts a Slurm whose jobs run as other users; use 'sudo -E cargo xtask …'"
        );
    }
    std::env::set_current_dir(cargo::root()?)?;
    // Packed files must have the same modes on every machine.
    umask(Mode::from_bits_truncate(0o022));
    match verb {
        Verb::Setup { arm64: false } => install::slurm()?,
        Verb::Setup { arm64: true } => println!("{}", install::arm64()?.display()),
        Verb::Test(options) => return test::run(options),
        Verb::Machine(options) => machine::run(options)?,
        Verb::Texts => cargo::build("run --package manual -- --texts .")?,
        Verb::Docs => site::run()?,
        Verb::Dist(options) => package::run(options)?,
        Verb::Hardware(options) => hardware::run(options)?,
        Verb::ReleaseCheck(options) => release_check::run(options)?,
        Verb::Demo => {
            install::slurm()?;
            cargo::build("build --workspace")?;
            return cargo::become_program("debug/demo", &[]);
        }
        Verb::Soak { numbers } => {
            cargo::build("build --workspace --lib --bins")?;
            return cargo::become_program("debug/soak", numbers);
        }
        Verb::Bench { words } => {
            if let [word, ..] = &words[..]
                && ["scale", "srun"].contains(&&**word)
            {
                install::slurm()?;
            }
            cargo::build(MEASURED)?;
            return cargo::become_program("release/bench", words);
        }
    }
    Ok(ExitCode::SUCCESS)
}
