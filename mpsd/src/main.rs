//! `mpsd`: the daemon of one job on one node. Started by mps-prologue, never by hand.

use clap::Parser as _;
use mpsd::{cli::programs::Daemon, daemon, node::worker};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Daemon::parse();
    let result = match &arguments {
        Daemon {
            note: Some(file),
            group,
            ..
        } => daemon::note(file, *group),
        Daemon {
            nvml: Some(library),
            ..
        } => worker::serve(library),
        Daemon {
            terminate: Some(clients),
            ..
        } => daemon::terminate(clients),
        Daemon { stop: true, .. } => daemon::stop(),
        Daemon { look: true, .. } => daemon::look(),
        _ => daemon::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            mpsd::cli::complain("mpsd", &why);
            ExitCode::FAILURE
        }
    }
}
