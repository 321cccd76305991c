//! What other exporters are told of a job: a line in a file for each of its GPUs, beside the lines of others.

use super::journal::Journal;
use crate::plan::effects::Exporter;
use mpsd_core::JobId;

/// A file of an exporter's, and the job's line in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The file's name in the exporter's directory.
    pub file: String,
    /// The line, without its end.
    pub line: String,
}

/// The job's entries: dcgm-exporter reads a job id a line from a file named by the GPU's number, of which its MIG devices have the same,
/// jobstats' exporter `JOBID UID` from the first line of one named by its UUID
/// (docs/facts/field.md#which-job-uses-a-gpu-as-exporters-read-it).
pub fn entries(exporter: Exporter, journal: &Journal) -> Vec<Entry> {
    let entry = |gpu: &mpsd_core::record::RecordGpu| match exporter {
        Exporter::Dcgm => Entry {
            file: gpu.index.to_string(),
            line: journal.job.to_string(),
        },
        Exporter::Jobstats => Entry {
            file: gpu.uuid.to_string(),
            line: format!("{} {}", journal.job, journal.uid),
        },
    };
    journal.gpus.iter().map(entry).collect()
}

/// The text of a file with `line`, once, behind all others.
pub fn with(text: &str, job: &JobId, line: &str) -> String {
    let mut text = without(text, job);
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text + line + "\n"
}

/// The text of a file without the lines of `job`: all others to the byte.
pub fn without(text: &str, job: &JobId) -> String {
    let is_jobs = |line: &&str| line.split_ascii_whitespace().next() == Some(job.as_str());
    text.split_inclusive('\n').filter(|line| !is_jobs(line)).collect()
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
