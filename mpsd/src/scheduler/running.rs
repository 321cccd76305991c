//! The jobs with MPS on this node, before a verb or a package takes away what ends them: their daemons and an exclusive GPU
//! would stay.

use crate::sys::deadline::Deadline;
use mpsd_core::Paths;
use std::fs;
use std::io::ErrorKind;
use std::time::Duration;

/// How often the jobs are looked at.
const POLL: Duration = Duration::from_millis(500);

/// What a verb does about them.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Running {
    /// Wait so long for the jobs with MPS that run on this node
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub wait: u64,
    /// Remove it although jobs with MPS run here: mpsd-reconcile.timer takes their MPS down after them
    #[arg(long)]
    pub force: bool,
}

impl Running {
    /// The jobs that run all the same; a line for the verb's report, where there are any.
    ///
    /// # Errors
    /// They run still, after the wait.
    pub fn allow(&self, paths: &Paths) -> Result<Option<String>, String> {
        let jobs = match self.force {
            true => here(paths)?,
            false => after(paths, self.wait)?,
        };
        let list = jobs.join(", ");
        match (jobs.is_empty(), self.force) {
            (true, _) => Ok(None),
            (false, true) => Ok(Some(format!(
                "{list}: with MPS here still; mpsd-reconcile.timer takes it down after them"
            ))),
            (false, false) => Err(format!(
                "nothing removed: jobs with MPS run here, and their end needs our files: {list}; allowed: --wait SECONDS, or \
                 --force, after which mpsd-reconcile.timer takes their MPS down"
            )),
        }
    }
}

/// The jobs that run here, once there is none or `wait` seconds are over.
///
/// # Errors
/// The directory of jobs cannot be read.
pub(crate) fn after(paths: &Paths, wait: u64) -> Result<Vec<String>, String> {
    let end = Deadline::after(Duration::from_secs(wait));
    loop {
        let jobs = here(paths)?;
        if jobs.is_empty() || !end.sleep(POLL) {
            return Ok(jobs);
        }
    }
}

fn here(paths: &Paths) -> Result<Vec<String>, String> {
    let directory = paths.jobs();
    let entries = match fs::read_dir(&directory) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|e| format!("cannot read '{}': {e}", directory.display()))?,
    };
    let begun = entries
        .flatten()
        .filter(|entry| entry.path().join("journal").exists());
    let mut jobs: Vec<String> = begun
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    jobs.sort();
    Ok(jobs)
}
