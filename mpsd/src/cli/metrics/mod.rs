//! `mpsctl metrics`: numbers about MPS on this node in Prometheus' text form.

mod look;
mod page;
mod text;

use super::{NAME, complain, say};
use crate::node::{reports, site_directory};
use crate::sys::files::Dir;
use look::JobPhase;
use mpsd_core::config::Settings;
use mpsd_core::failure::{EXIT_NODE, Undetermined};
use mpsd_core::{Failure, Paths};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file below the directory that node_exporter reads.
const FILE: &str = "mpsd.prom";
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
        let ready = seen
            .jobs
            .iter()
            .filter(|job| job.state == JobPhase::Ready)
            .count();
        let counted = reports::counted(&settings.paths, &settings.reports, ready);
        let counted = counted.map_err(|why| seen.missing.push(format!("the counters: {why}")));
        let page = text::page(&seen, counted.ok().as_ref());
        match &self.textfile {
            None => say(&page),
            Some(directory) => write(&settings.paths, directory, &page)?,
        }
        for line in &seen.missing {
            complain(NAME, line);
        }
        Ok(if seen.missing.is_empty() { 0 } else { EXIT_NODE })
    }
}

/// In one step; no link is followed. The timer's run and one by hand do not meet in it.
fn write(paths: &Paths, directory: &Path, page: &str) -> Result<(), Failure> {
    let place = || {
        let written = Dir::open(directory).and_then(|dir| dir.write_whole(FILE, page.as_bytes(), MODE));
        written.map_err(|error| error.to_string())
    };
    let what = || format!("'{}'", directory.join(FILE).display());
    let written = site_directory::change(paths, directory, WRITE_TIME, place);
    written
        .map(drop)
        .map_err(|why| Undetermined::new(what(), why).into())
}
