//! `mpsd`: the daemon of one job on one node. Started by mps-prologue, never by hand.

use clap::Parser as _;
use mpsd::{cli::programs::Daemon, node::worker, supervisor};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Daemon::parse();
    let result = match &arguments {
        Daemon {
            note: Some(file),
            group,
            ..
        } => supervisor::note(file, *group),
        Daemon {
            nvml: Some(library),
            ..
        } => worker::serve(library),
        Daemon {
            terminate: Some(clients),
            ..
        } => supervisor::terminate(clients),
        Daemon { stop: true, .. } => supervisor::stop(),
        Daemon { look: true, .. } => supervisor::look(),
        _ => supervisor::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            mpsd::cli::complain("mpsd", &why);
            ExitCode::FAILURE
        }
    }
}
