//! The command line of `mpsd`.

use clap::Parser;

/// Supervises the NVIDIA MPS control daemons of one batch job.
///
/// Started by mps-prologue as the job's user, with its specification on descriptor 3; it is of no use by hand.
#[derive(Debug, Parser)]
#[command(name = "mpsd", version)]
pub struct Arguments {
    /// Ask the job's control daemons to end, then end (used by the teardown).
    #[arg(long, conflicts_with = "nvml")]
    pub stop: bool,
    /// Answer questions about the node's GPUs through this NVML library, on descriptor 3 (used by root's programs).
    #[arg(long, value_name = "LIBRARY")]
    pub nvml: Option<String>,
}
