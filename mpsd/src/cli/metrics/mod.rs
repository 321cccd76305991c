//! `mpsctl metrics`: numbers about MPS on this node in Prometheus' text form.

mod look;
mod page;
mod text;

use super::{NAME, complain, say};
use crate::node::reports;
use crate::sys::deadline::Deadline;
use crate::sys::files::{Dir, FileError};
use crate::sys::guard::ask;
use look::State;
use mpsd_core::Failure;
use mpsd_core::config::Settings;
use mpsd_core::failure::{EXIT_NODE, Undetermined};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file below the directory that node_exporter reads.
const FILE: &str = "mpsd.prom";
/// Its lock, while it is written; node_exporter reads no such name.
const LOCK: &str = ".mpsd.prom.lock";
/// node_exporter runs as a user of its own.
const MODE: u32 = 0o644;
/// Time to write it: the directory may be anywhere.
const WRITE_TIME: Duration = Duration::from_secs(5);

/// `mpsctl metrics`.
#[derive(Debug, Clone, clap::Args)]
pub struct Metrics {
    /// Write them into DIR/mpsd.prom instead, whole, for the textfile collector of node_exporter
    #[arg(long, value_name = "DIR")]
    pub textfile: Option<PathBuf>,
    /// The node's name in the scheduler; this host's if not given
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

impl Metrics {
    /// Prints or writes them; returns the exit code.
    ///
    /// # Errors
    /// Our own directories cannot be read, or the file cannot be written.
    pub fn run(&self, settings: &Settings) -> Result<u8, Failure> {
        let mut seen = look::look(settings)?;
        let ready = seen.jobs.iter().filter(|job| job.state == State::Ready).count();
        let counted = reports::counted(&settings.paths, &settings.reports, ready);
        let counted = counted.map_err(|why| seen.missing.push(format!("the counters: {why}")));
        let page = text::page(&seen, counted.ok().as_ref());
        match &self.textfile {
            None => say(&page),
            Some(directory) => write(directory, &page)?,
        }
        for line in &seen.missing {
            complain(NAME, line);
        }
        Ok(if seen.missing.is_empty() { 0 } else { EXIT_NODE })
    }
}

/// The timer's run and one by hand do not meet in it.
fn place(directory: &Path, page: &str) -> Result<(), FileError> {
    let directory = Dir::open(directory)?;
    let _held = directory.lock(LOCK, Deadline::after(WRITE_TIME / 2))?;
    let written = directory.write_whole(FILE, page.as_bytes(), MODE);
    // Whoever waits for it takes the next one.
    directory.remove_file(LOCK)?;
    written
}

/// In one step, by a child with a deadline; no link is followed.
fn write(directory: &Path, page: &str) -> Result<(), Failure> {
    let question = || {
        let written = place(directory, page).err();
        written.map(|e| e.to_string()).unwrap_or_default().into_bytes()
    };
    let why = match ask(Deadline::after(WRITE_TIME), question) {
        Ok(none) if none.is_empty() => return Ok(()),
        Ok(why) => String::from_utf8_lossy(&why).into_owned(),
        Err(none) => none.to_string(),
    };
    let what = format!("'{}'", directory.join(FILE).display());
    Err(Undetermined::new(what, why).into())
}
