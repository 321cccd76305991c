//! `mpsd`: the daemon of one job on one node. Started by mps-prologue, never by hand.

use clap::Parser as _;
use mpsd::{cli::programs::Daemon, daemon, node::worker};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Daemon::parse();
    let result = match &arguments.nvml {
        Some(library) => worker::serve(library),
        None if arguments.stop => daemon::stop(),
        None if arguments.look => daemon::look(),
        None => daemon::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            mpsd::cli::complain("mpsd", &why);
            ExitCode::FAILURE
        }
    }
}
