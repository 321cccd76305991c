//! `mpsd`: the daemon of one job on one node. Started by mps-prologue, never by hand.

use clap::Parser;
use mpsd::{node::worker, supervise};
use std::process::ExitCode;

/// Supervises the NVIDIA MPS control daemons of one batch job.
///
/// Started by mps-prologue as the job's user, with its specification on descriptor 3; it is of no use by hand.
#[derive(Debug, Parser)]
#[command(name = "mpsd", version)]
struct Arguments {
    /// Ask the job's control daemons to end, then end (used by the teardown).
    #[arg(long, conflicts_with = "nvml")]
    stop: bool,
    /// Answer questions about the node's GPUs through this NVML library, on descriptor 3 (used by root's programs).
    #[arg(long, value_name = "LIBRARY")]
    nvml: Option<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match (&arguments.nvml, arguments.stop) {
        (Some(library), _) => worker::serve(library),
        (None, true) => supervise::stop(),
        (None, false) => supervise::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            mpsd::cli::complain("mpsd", &why);
            ExitCode::FAILURE
        }
    }
}
