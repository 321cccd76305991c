//! `mpsctl metrics`: numbers about MPS on this node for Prometheus. Only root's journals, the kernel and NVML are
//! asked. A process of a user could delay the answer, or lie.

mod collect;
mod page;

use super::terminal::say;
use super::{NAME, complain};
use crate::node::{reports, site_directory};
use crate::sys::files::Dir;
use mpsd_core::config::Settings;
use mpsd_core::failure::{EXIT_NODE, Undetermined};
use mpsd_core::{Failure, Paths};

use collect::NodeStatus;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file's name in the directory of `--textfile`.
const FILE: &str = "mpsd.prom";
/// node_exporter reads the file as another user.
const MODE: u32 = 0o644;
/// Longest time for writing the file: the directory may be on a slow file system.
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
        let mut status = NodeStatus::collect(settings)?;
        let ready = status.count("ready");
        let counted = reports::counted(&settings.paths, &settings.reports, ready);
        let counted = counted.map_err(|why| status.problems.push(format!("the counters: {why}")));
        let page = page::page(&status, counted.ok().as_ref());
        match &self.textfile {
            None => say(&page),
            Some(directory) => write(&settings.paths, directory, &page)?,
        }
        status.problems.iter().for_each(|line| complain(NAME, line));
        Ok(if status.problems.is_empty() { 0 } else { EXIT_NODE })
    }
}

/// Writes the file in one step, through no link and under the directory's lock.
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
