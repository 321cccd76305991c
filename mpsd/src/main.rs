//! `mpsd`: the daemon of one job on one node. Started by mps-prologue, never by hand.

use clap::Parser as _;
use mpsd::{cli::programs::Daemon, daemon, node::worker};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Daemon::parse();
    let result = match (&arguments.nvml, arguments.stop) {
        (Some(library), _) => worker::serve(library),
        (None, true) => daemon::stop(),
        (None, false) => daemon::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            mpsd::cli::complain("mpsd", &why);
            ExitCode::FAILURE
        }
    }
}
