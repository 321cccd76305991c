//! What other exporters are told of a job: a line in a file for each of its GPUs, beside the lines
//! of others.

use super::journal::Journal;
use super::node::{FileError, Files};
use crate::plan::effects::Exporter;
use mpsd_core::JobId;
use mpsd_core::file::Durability;
use std::path::Path;
use std::time::Duration;

/// Longest that a start and an end wait for the files to be changed.
const TIME: Duration = Duration::from_millis(500);
const LONGEST: usize = 64 << 10;
/// The exporter runs as a user of its own.
const READABLE: u32 = 0o644;
const OTHERS_WRITE: u32 = 0o022;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Enter,
    Leave,
}

/// Changes the job's lines in the files of `exporter` in `directory`; others' lines stay. `Some`:
/// why what is there cannot be ours. An error may be over at the next try.
pub(super) fn tell(
    files: &mut impl Files,
    journal: &Journal,
    exporter: Exporter,
    directory: &Path,
    direction: Direction,
) -> Result<Option<String>, String> {
    let work = |files: &mut _| match change(files, journal, exporter, directory, direction) {
        Ok(()) => Ok(None),
        Err(error @ FileError::Unfit { .. }) => Ok(Some(error.to_string())),
        Err(error) => Err(error.to_string()),
    };
    files.change_listed(directory, TIME, work)
}

fn change(
    files: &mut impl Files,
    journal: &Journal,
    exporter: Exporter,
    directory: &Path,
    direction: Direction,
) -> Result<(), FileError> {
    let Some(theirs) = files.directory_status(directory)? else {
        return match direction {
            Direction::Enter => Err(FileError::unfit(directory, "is not there")),
            Direction::Leave => Ok(()),
        };
    };
    let run = files.settings().paths.run().to_owned();
    let ours = files.directory_status(&run)?;
    if theirs.st_uid != 0 || theirs.st_mode & OTHERS_WRITE != 0 {
        return Err(FileError::unfit(directory, "is not root's alone to write"));
    }
    if ours.is_none_or(|ours| ours.st_dev != theirs.st_dev) {
        let what = "is not on the file system of run_dir: what it says would outlive a reboot";
        return Err(FileError::unfit(directory, what));
    }
    for (name, line) in entries(exporter, journal) {
        let file = directory.join(&name);
        let before = files.read(&file, LONGEST)?;
        let is_there = before.is_some();
        let text = String::from_utf8(before.unwrap_or_default());
        let text = text.map_err(|_| FileError::unfit(&file, "is no text"))?;
        let after = match direction {
            Direction::Enter => with(&text, &journal.job, &line),
            Direction::Leave => without(&text, &journal.job),
        };
        // A writer that was killed may have left this.
        files.remove_file(&directory.join(format!(".{name}.new")))?;
        if is_there && after.is_empty() && !text.is_empty() {
            files.remove_file(&file)?;
        } else if after != text {
            files.write(&file, after.as_bytes(), READABLE, Durability::Placed)?;
        }
    }
    Ok(())
}

/// Names of files, each with the job's line. dcgm-exporter reads a job id a line from a file named
/// by the GPU's number, which its MIG devices share. jobstats' exporter reads `JOBID UID` from the
/// first line of a file named by the GPU's UUID
/// (docs/facts/field.md#which-job-uses-a-gpu-as-exporters-read-it).
fn entries(exporter: Exporter, journal: &Journal) -> impl Iterator<Item = (String, String)> {
    journal.gpus.iter().map(move |gpu| match exporter {
        Exporter::Dcgm => (gpu.index.to_string(), journal.job.to_string()),
        Exporter::Jobstats => (
            gpu.uuid.to_string(),
            format!("{} {}", journal.job, journal.uid),
        ),
    })
}

fn with(text: &str, job: &JobId, line: &str) -> String {
    let mut text = without(text, job);
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text + line + "\n"
}

fn without(text: &str, job: &JobId) -> String {
    let is_jobs = |line: &&str| line.split_ascii_whitespace().next() == Some(job.as_str());
    text.split_inclusive('\n')
        .filter(|line| !is_jobs(line))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_others_stay_as_they_are() {
        let job = JobId::parse("7").unwrap();
        for (before, after) in [
            ("", "7 1000\n"),
            ("17 5\n", "17 5\n7 1000\n"),
            ("17", "17\n7 1000\n"),
            ("7 1\n\n77\n", "\n77\n7 1000\n"),
        ] {
            assert_eq!(with(before, &job, "7 1000"), after);
            assert_eq!(with(after, &job, "7 1000"), after);
        }
        assert_eq!(without("17 5\n7 1000\n71", &job), "17 5\n71");
        assert_eq!(without("7", &job), "");
    }
}
