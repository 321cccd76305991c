//! `mpsd`: the daemon of one job on one node. Started by our programs, never by hand.

use clap::Parser as _;
use mpsd::{cli::programs::Daemon, node::worker, supervisor};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Daemon::parse();
    let result = if let Some(file) = &arguments.note {
        supervisor::note(file, arguments.group)
    } else if let Some(library) = &arguments.nvml {
        worker::serve(library)
    } else if let Some(clients) = &arguments.terminate {
        supervisor::terminate(clients)
    } else if arguments.stop {
        supervisor::stop()
    } else if arguments.look {
        supervisor::look()
    } else {
        supervisor::run()
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            mpsd::cli::complain("mpsd", &why);
            ExitCode::FAILURE
        }
    }
}
