//! This process: the signals that end it, its neighbors, and how its failures are told.

use mpsd_core::failure::EXIT_NODE;
use mpsd_sys::Exit;
use mpsd_sys::family;
use mpsd_sys::signals::Signals;
use nix::sys::signal::Signal;
use setup::VerbError;
use std::path::PathBuf;

/// A shell's exit code for a command that a signal ended, less the signal's number.
const BY_SIGNAL: u8 = 128;

/// What both verbs need of this process.
#[derive(Debug)]
pub struct Setting {
    /// Those that end everything.
    pub signals: Signals,
    /// The program `mpsd`, which asks NVML.
    pub daemon: PathBuf,
}

impl Setting {
    pub fn new() -> Result<Self, VerbError> {
        let signals = [
            Signal::SIGINT,
            Signal::SIGTERM,
            Signal::SIGHUP,
            Signal::SIGQUIT,
        ];
        let signals =
            Signals::block(&signals).map_err(|errno| of_node(format!("signals: {errno}")))?;
        family::adopt_orphans().map_err(|errno| of_node(format!("orphans: {errno}")))?;
        let own = std::env::current_exe().map_err(|error| of_node(format!("own path: {error}")))?;
        Ok(Self {
            signals,
            daemon: own.with_file_name("mpsd"),
        })
    }

    pub fn signal(&self) -> Option<Signal> {
        self.signals.read().ok().flatten()
    }
}

pub fn of_node(line: String) -> VerbError {
    let code = EXIT_NODE;
    VerbError { line, code }
}

pub fn code_of(signal: Signal) -> u8 {
    BY_SIGNAL.saturating_add(signal as i32 as u8)
}

/// The failure of a process that kept a command.
pub fn lost(exit: Exit) -> String {
    format!("the process that started it ended by {exit}")
}
