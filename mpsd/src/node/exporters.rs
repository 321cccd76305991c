//! The files of other exporters, in directories of root's that the site has made: each changed in one step.

use super::listed;
use super::real::RealNode;
use crate::job::Journal;
use crate::job::exporters::{Entry, entries, with, without};
use crate::plan::effects::Exporter;
use crate::sys::files::{Dir, FileError};
use mpsd_core::failure::Undetermined;
use mpsd_core::{Failure, JobId};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time to change them: a start and an end wait for it, and no longer.
const TIME: Duration = Duration::from_millis(500);
/// Longest file that is read. Bytes.
const LONGEST: usize = 64 << 10;
/// A file of theirs: the exporter runs as a user of its own.
const FILE: u32 = 0o644;
/// Others may write.
const OTHERS_WRITE: u32 = 0o022;

/// Why a file is not as it should be now.
enum Wrong {
    /// Nothing of ours can be there.
    Unfit(String),
    /// It may be so at the next try.
    Now(String),
}

impl From<FileError> for Wrong {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Unfit { .. } => Self::Unfit(error.to_string()),
            other => Self::Now(other.to_string()),
        }
    }
}

impl RealNode {
    /// Enters the job.
    ///
    /// # Errors
    /// One line.
    pub(super) fn tell(&self, journal: &Journal, exporter: Exporter, directory: &Path) -> Result<(), String> {
        match self.changed(journal, exporter, directory, true) {
            Ok(()) => Ok(()),
            Err(Wrong::Unfit(why) | Wrong::Now(why)) => Err(why),
        }
    }

    /// Takes the job's lines out; a line for the log, where what is there cannot be ours.
    ///
    /// # Errors
    /// Undetermined: they may be there still.
    pub(super) fn untell(
        &self,
        journal: &Journal,
        exporter: Exporter,
        directory: &Path,
    ) -> Result<Option<String>, Failure> {
        match self.changed(journal, exporter, directory, false) {
            Ok(()) => Ok(None),
            Err(Wrong::Unfit(why)) => Ok(Some(format!("{exporter} is told nothing: {why}"))),
            Err(Wrong::Now(why)) => {
                Err(Undetermined::new(format!("the job's lines for {exporter}"), why).into())
            }
        }
    }

    fn changed(
        &self,
        journal: &Journal,
        exporter: Exporter,
        directory: &Path,
        enter: bool,
    ) -> Result<(), Wrong> {
        let change = Change {
            run: self.settings.paths.run().to_owned(),
            directory: directory.to_owned(),
            entries: entries(exporter, journal),
            job: &journal.job,
            enter,
        };
        let make = || match change.make() {
            Ok(()) => Ok(Vec::new()),
            Err(Wrong::Unfit(why)) => Ok(why.into_bytes()),
            Err(Wrong::Now(why)) => Err(why),
        };
        let unfit = listed::change(&self.settings.paths, directory, TIME, make).map_err(Wrong::Now)?;
        match unfit.is_empty() {
            true => Ok(()),
            false => Err(Wrong::Unfit(String::from_utf8_lossy(&unfit).into_owned())),
        }
    }
}

struct Change<'a> {
    run: PathBuf,
    directory: PathBuf,
    entries: Vec<Entry>,
    job: &'a JobId,
    enter: bool,
}

impl Change<'_> {
    fn make(&self) -> Result<(), Wrong> {
        let run = Dir::open(&self.run)?;
        let directory = match Dir::find(&self.directory)? {
            Some(directory) => directory,
            None if self.enter => {
                let why = format!("'{}' is not there", self.directory.display());
                return Err(Wrong::Unfit(why));
            }
            None => return Ok(()),
        };
        self.check(&run, &directory)?;
        self.entries
            .iter()
            .try_for_each(|entry| self.one(&directory, entry))
    }

    /// What tells of jobs must be gone after a reboot as they are: it lies on the file system of our own directory.
    fn check(&self, run: &Dir, directory: &Dir) -> Result<(), Wrong> {
        let (ours, theirs) = (run.status()?, directory.status()?);
        let what = if theirs.st_uid != 0 || theirs.st_mode & OTHERS_WRITE != 0 {
            "is not root's alone to write"
        } else if ours.st_dev != theirs.st_dev {
            "is not on the file system of run_dir: what it says would outlive a reboot"
        } else {
            return Ok(());
        };
        Err(FileError::unfit(&self.directory, what).into())
    }

    fn one(&self, directory: &Dir, entry: &Entry) -> Result<(), Wrong> {
        let before = directory.read_limited(&entry.file, LONGEST)?;
        let text = String::from_utf8(before.clone().unwrap_or_default());
        let path = directory.path().join(&entry.file);
        let text = text.map_err(|_| FileError::unfit(path, "is no text"))?;
        let after = match self.enter {
            true => with(&text, self.job, &entry.line),
            false => without(&text, self.job),
        };
        // What a writer that was killed left of it: see `Dir::write_whole`.
        directory.remove_file(format!(".{}.new", entry.file))?;
        if before.is_some() && after.is_empty() && !text.is_empty() {
            directory.remove_file(&entry.file)?;
        } else if after != text {
            directory.write_whole(&entry.file, after.as_bytes(), FILE)?;
        }
        Ok(())
    }
}
