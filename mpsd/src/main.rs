//! `mpsd`: the daemon of one job on one node. Started by mps-prologue, never by hand.

use clap::Parser as _;
use mpsd::{cli::programs::Daemon, daemon, node::worker};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Daemon::parse();
    let result = match (&arguments.nvml, &arguments.set) {
        _ if arguments.note.is_some() => {
            let file = arguments
                .note
                .as_deref()
                .unwrap_or_else(|| std::path::Path::new(""));
            daemon::note::append(file, std::io::stdin())
        }
        (Some(library), _) => worker::serve(library),
        (None, Some(limits)) => daemon::set(limits),
        (None, None) if arguments.stop => daemon::stop(),
        (None, None) if arguments.look => daemon::look(),
        (None, None) => daemon::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            mpsd::cli::complain("mpsd", &why);
            ExitCode::FAILURE
        }
    }
}
