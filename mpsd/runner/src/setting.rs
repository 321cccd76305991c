//! This process: the signals that end it, its neighbors, and how its failures are told.

use anyhow::{Context as _, Result};
use mpsd_core::failure::{EXIT_NODE, EXIT_REFUSED};
use mpsd_core::{Failure, Refusal};
use mpsd_sys::Exit;
use mpsd_sys::family;
use mpsd_sys::signals::Signals;
use nix::sys::signal::Signal;
use setup::VerbError;
use std::path::PathBuf;

#[derive(Debug)]
pub struct Setting {
    pub signals: Signals,
    /// The program `mpsd`, which asks NVML.
    pub daemon: PathBuf,
}

impl Setting {
    pub fn new() -> Result<Self> {
        use Signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
        let signals = Signals::block(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT]).context("signals")?;
        family::adopt_orphans().context("orphans")?;
        let own = std::env::current_exe().context("own path")?;
        let daemon = own.with_file_name("mpsd");
        Ok(Self { signals, daemon })
    }

    pub fn signal(&self) -> Option<Signal> {
        self.signals.read().ok().flatten()
    }
}

/// What is no refusal is this node's.
pub fn told(error: &anyhow::Error) -> VerbError {
    let failure = error.downcast_ref();
    let is_refused = error.is::<Refusal>() || matches!(failure, Some(Failure::Refusal(_)));
    let code = if is_refused { EXIT_REFUSED } else { EXIT_NODE };
    let line = format!("{error:#}");
    VerbError { line, code }
}

/// A shell's exit code for a command that a signal ended.
pub fn code_of(signal: Signal) -> u8 {
    128_u8.saturating_add(signal as i32 as u8)
}

/// The failure of a process that kept a command.
pub fn lost(exit: Exit) -> String {
    format!("the process that started it ended by {exit}")
}
