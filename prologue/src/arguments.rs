//! The command line of `mps-prologue`.

use clap::{Parser, ValueEnum};
use mpsd::cli;
use mpsd::cli::job_arguments::JobArguments;
use mpsd_core::config::DEFAULT_PATH;
use std::path::PathBuf;

/// Starts a job's own NVIDIA MPS before the job runs.
///
/// Run as root by Slurm's plugin, by a Torque or OpenPBS prologue, or by the OpenPBS hook. A job that did not ask for
/// MPS is left alone: exit 0, nothing touched.
///
/// Exit status: 0 the server is proved ready, or MPS was not asked for; 1 the request was refused; 2 the node could
/// not do it (requeue the job); 3 the same, told to
/// the OpenPBS hook alone: the node's fault, so that the try does not count against the job.
#[derive(Debug, Clone, Parser)]
#[command(name = "mps-prologue", version = cli::version(), after_help = cli::examples::of("mps-prologue"))]
pub struct Arguments {
    /// The job and its request.
    #[command(flatten)]
    pub job: JobArguments,
    /// Configuration; a file of root's.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_PATH)]
    pub config: PathBuf,
    /// When to return: the daemon is proved ready, or it is being started. A caller of 'announced' may stop waiting before.
    #[arg(long, value_enum, default_value = "ready")]
    pub wait: Wait,
    /// Leave a refusal or a failure on the node for the job's tasks to read.
    #[arg(long)]
    pub record: bool,
    /// Torque: a directory is here of a job that the mom does not have. It is taken down first, also for a job that did not ask.
    #[arg(long)]
    pub gone: bool,
}

/// How long the prologue waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Wait {
    /// Until the server is proved ready.
    Ready,
    /// Until it is being started; a process of its own proves it, and the record tells.
    Started,
    /// Until the server is proved ready, or the caller goes on without it: the record tells from the first moment.
    Announced,
}
