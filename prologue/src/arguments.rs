//! The command line of `mps-prologue`.

use clap::{Parser, ValueEnum};
use mpsd::cli::common::{CONFIG, SchedulerName};
use mpsd::scheduler::Given;
use std::ffi::OsString;
use std::path::PathBuf;

/// Starts a job's own NVIDIA MPS before the job runs.
///
/// Run as root by Slurm's plugin, by a Torque or OpenPBS prologue, or by the OpenPBS hook. A job that did not ask for
/// MPS is left alone: exit 0, nothing touched.
///
/// Exit status: 0 the server is proved ready, or MPS was not asked for; 1 the request was refused; 2 the node could
/// not do it (requeue the job).
#[derive(Debug, Clone, Parser)]
#[command(name = "mps-prologue", version)]
pub struct Arguments {
    /// The batch system; without it, found from the number of arguments and the environment.
    #[arg(long, value_enum)]
    pub scheduler: Option<SchedulerName>,
    /// Configuration; a file of root's.
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    pub config: PathBuf,
    /// The request, in the words of the account tokens (Slurm's plugin).
    #[arg(long, value_name = "TEXT")]
    pub request: Option<String>,
    /// The job's account string (OpenPBS's hook).
    #[arg(long, value_name = "TEXT")]
    pub account: Option<OsString>,
    /// The job's string resource `mps` (OpenPBS's hook).
    #[arg(long, value_name = "TEXT")]
    pub resource: Option<String>,
    /// The job's GPUs on this node, UUIDs or indexes with commas.
    #[arg(long, value_name = "LIST")]
    pub gpus: Option<String>,
    /// OpenPBS's Resource_List.select.
    #[arg(long, value_name = "TEXT")]
    pub select: Option<String>,
    /// OpenPBS's Resource_List.place.
    #[arg(long, value_name = "TEXT")]
    pub place: Option<String>,
    /// OpenPBS's exec_vnode.
    #[arg(long, value_name = "TEXT")]
    pub vnodes: Option<String>,
    /// This is not the job's first node.
    #[arg(long)]
    pub sister: bool,
    /// Start a daemon for this step of the job alone (Slurm); the compute mode stays.
    #[arg(long, value_name = "STEP")]
    pub step: Option<String>,
    /// Return when the daemon is proved ready, or as soon as it is being started.
    #[arg(long, value_enum, default_value = "ready")]
    pub wait: Wait,
    /// Leave a refusal or a failure on the node for the job's tasks to read.
    #[arg(long)]
    pub record: bool,
    /// The scheduler's own arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    pub positional: Vec<OsString>,
}

/// How long the prologue waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Wait {
    /// Until the server is proved ready.
    Ready,
    /// Until it is being started; a process of its own proves it, and the record tells.
    Started,
}

impl Arguments {
    /// What our own options say of the job.
    pub fn given(&self) -> Given {
        Given {
            account: self.account.clone(),
            resource: self.resource.clone(),
            gpus: self.gpus.clone(),
            select: self.select.clone(),
            place: self.place.clone(),
            vnodes: self.vnodes.clone(),
            sister: self.sister,
        }
    }
}
