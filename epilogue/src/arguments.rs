//! The command line of `mps-epilogue`.

use clap::Parser;
use mpsd::cli;
use mpsd::scheduler::{self, Scheduler};
use mpsd_core::config::DEFAULT_PATH;
use std::ffi::OsString;
use std::path::PathBuf;

/// Takes a job's MPS away when the job has ended, and proves that it is gone.
///
/// Run as root after the job, by whatever ran mps-prologue before it; also without a prologue, twice, or after a
/// crash. A job that has no MPS on this node costs nothing.
///
/// Exit status: 0; with --strict 2 when the node is not as it was.
#[derive(Debug, Clone, Parser)]
#[command(name = "mps-epilogue", version = cli::version(), after_help = cli::examples::of("mps-epilogue"))]
pub struct Arguments {
    /// The batch system; without it, found from the number of arguments and the environment.
    #[arg(long, value_parser = scheduler::by_name())]
    pub scheduler: Option<Scheduler>,
    /// Configuration; a file of root's. Only its directories are needed: the job's journal has the rest.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_PATH)]
    pub config: PathBuf,
    /// Exit 2 when something of the job is left.
    #[arg(long)]
    pub strict: bool,
    /// End the daemon of this step alone (Slurm).
    #[arg(long, value_name = "STEP")]
    pub step: Option<String>,
    /// The scheduler's own arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    pub positional: Vec<OsString>,
}
