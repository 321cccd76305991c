//! The reports that a job's own user may read, beside root's: copies, `/run/mpsd/reports/<uid>/<job>.json`, a report a line.
//!
//! Whoever may read a file can keep its lock on a disk's file system (XFS, ext4 with O_DIRECT: the read holds it while it waits for
//! the reader's own memory, a mapping of his FUSE file system, say), and whoever replaces or removes it then waits, with the directory's lock.
//! A tmpfs holds none while it reads. So nobody opens root's own file, copies are made in a tmpfs alone, and elsewhere there are none.
//! Their directory is root's alone, and an ACL lets one user pass through it, not list it: who lists a directory can keep its lock anywhere.

use crate::job::report::{JobReport, VERSION};
use crate::sys::deadline::Deadline;
use crate::sys::files::Dir;
use mpsd_core::trusted::open_trusted;
use mpsd_core::{JobId, Paths};
use std::time::Duration;

/// The directory above: anyone may pass through, nobody may list.
const PASSABLE: u32 = 0o711;
/// A user's directory: what is shown where an ACL lets one user pass and nobody else; without the ACL the group is root's.
const SECRET: u32 = 0o710;
/// A copy, in a directory that one user alone can pass through.
const READABLE: u32 = 0o644;
/// Root.
const ROOT: (u32, u32) = (0, 0);
/// Most jobs of a user, most reports of a job (its runs, its steps), and bytes of them: all users' lie in one file system with the pipes.
const MOST_JOBS: usize = 32;
const MOST_REPORTS: usize = 16;
const MOST_BYTES: usize = 64 * 1024;
/// Longest file that is read.
const LONGEST: usize = 2 * MOST_BYTES;
/// More names than are ever there.
const MOST_NAMES: usize = 10_000;
/// Serializes those who write copies.
const LOCK: &str = ".lock";
/// Time to get it: an end waits for it.
const LOCK_TIME: Duration = Duration::from_millis(200);

/// Keeps a copy of `report` for its user; does nothing where the place is no tmpfs.
///
/// # Errors
/// One line; nothing else is lost.
pub fn keep(paths: &Paths, report: &JobReport, oldest: u64) -> Result<(), String> {
    let shown = |e: crate::sys::files::FileError| e.to_string();
    let run = Dir::open(paths.run()).map_err(shown)?;
    if !run.is_tmpfs() {
        return Ok(());
    }
    let (all, _) = run
        .create_dir(name_of(&paths.own_reports()), PASSABLE, ROOT)
        .map_err(shown)?;
    let _held = all.lock(LOCK, Deadline::after(LOCK_TIME)).map_err(shown)?;
    let (own, _) = all
        .create_dir(report.uid.to_string(), SECRET, ROOT)
        .map_err(shown)?;
    // Each time: whoever made the directory may have been killed before this.
    own.let_pass(report.uid).map_err(shown)?;
    let name = file_name(&report.job);
    let earlier = own.read_limited(&name, LONGEST).ok().flatten();
    let text = joined(&earlier.unwrap_or_default(), report)?;
    own.write_whole(&name, text.as_bytes(), READABLE).map_err(shown)?;
    prune(&own, oldest)
}

fn name_of(path: &std::path::Path) -> &std::ffi::OsStr {
    path.file_name().unwrap_or_default()
}

/// The file of a job and its steps.
fn file_name(job: &JobId) -> String {
    format!("{}.json", job.whole().directory_name())
}

/// The lines of a file with that of `report`, which takes the place of an earlier one of the same run; the oldest go.
fn joined(earlier: &[u8], report: &JobReport) -> Result<String, String> {
    let mut reports = parse(earlier);
    reports.retain(|other| (&other.job, other.began) != (&report.job, report.began));
    reports.push(report.clone());
    let lines = reports
        .iter()
        .map(|report| serde_json::to_string(report).map(|line| line + "\n"));
    let mut lines: Vec<String> = lines.collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    while lines.len() > MOST_REPORTS || lines.len() > 1 && bytes_of(&lines) > MOST_BYTES {
        lines.remove(0);
    }
    match bytes_of(&lines) > MOST_BYTES {
        true => Err(format!(
            "its user has no copy, which takes {} bytes",
            bytes_of(&lines)
        )),
        false => Ok(lines.concat()),
    }
}

fn bytes_of(lines: &[String]) -> usize {
    lines.iter().map(String::len).sum()
}

fn parse(bytes: &[u8]) -> Vec<JobReport> {
    let lines = bytes.split(|byte| *byte == b'\n');
    let reports = lines.filter_map(|line| serde_json::from_slice::<JobReport>(line).ok());
    reports.filter(|report| report.version == VERSION).collect()
}

/// Removes what is more than a user's share, or older than `oldest`, seconds since 1970.
fn prune(own: &Dir, oldest: u64) -> Result<(), String> {
    let names = own.names(MOST_NAMES).map_err(|e| e.to_string())?;
    let written = |name: &std::ffi::OsString| {
        let status = own.status_of(name).ok().flatten();
        status
            .and_then(|status| u64::try_from(status.st_mtime).ok())
            .unwrap_or(0)
    };
    let mut all: Vec<_> = names.into_iter().map(|name| (written(&name), name)).collect();
    all.sort();
    all.reverse();
    let gone = all.into_iter().enumerate();
    for (_, (_, name)) in gone.filter(|(place, (time, _))| *place >= MOST_JOBS || *time < oldest) {
        own.remove_file(&name).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// The reports of `job` and its steps that user `uid` may read; `None`: there is no copy.
///
/// # Errors
/// One line: it is there, and cannot be read.
pub fn read(paths: &Paths, uid: u32, job: &JobId) -> Result<Option<Vec<JobReport>>, String> {
    let path = paths.own_reports().join(uid.to_string()).join(file_name(job));
    match open_trusted(&path).and_then(|file| file.read(LONGEST)) {
        Ok(bytes) => Ok(Some(parse(&bytes))),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report of job `job` that began at `began`.
    fn report(job: &str, began: u64, notes: &[&str]) -> JobReport {
        let text = format!(
            r#"{{"version":1,"job":"{job}","scheduler":"slurm","node":"n1","user":"alice","uid":1000,"gpus":[],"daemons":[],
        "exclusive":false,"began":{began},"ready_ms":1,"ended":{began},"teardown_ms":1,"as_before":true,"undetermined":[],
        "faults":[],"notes":[],"drain":null,"said_by_user":null}}"#
        );
        let mut report: JobReport = serde_json::from_str(&text).expect("a report");
        report.notes = notes.iter().map(|note| (*note).to_owned()).collect();
        report
    }

    #[test]
    fn a_job_has_one_file_with_its_steps_and_its_runs() {
        for (job, name) in [
            ("7", "7.json"),
            ("7.3", "7.json"),
            ("7100.srv", "7100.srv.json"),
            ("16[1].vm", "16[1].vm.json"),
        ] {
            assert_eq!(file_name(&JobId::parse(job).unwrap()), name);
        }
        let mut text = joined(b"", &report("7", 10, &[])).unwrap();
        for next in [
            report("7.0", 11, &[]),
            report("7", 20, &[]),
            report("7", 10, &["again"]),
        ] {
            text = joined(text.as_bytes(), &next).unwrap();
        }
        let all = parse(text.as_bytes());
        let named: Vec<_> = all.iter().map(|one| (one.job.as_str(), one.began)).collect();
        assert_eq!(named, [("7.0", 11), ("7", 20), ("7", 10)], "the same run once");
        assert_eq!(all[2].notes, ["again"]);
        assert_eq!(parse(b"{\n\xff\n\n{\"version\":1}\n"), []);
    }

    #[test]
    fn a_file_keeps_the_youngest_and_what_is_too_long_is_not_kept() {
        let mut text = String::new();
        for began in 0..40 {
            text = joined(text.as_bytes(), &report("7", began, &[])).unwrap();
        }
        let all = parse(text.as_bytes());
        assert_eq!(
            (all.len(), all[0].began),
            (MOST_REPORTS, 40 - MOST_REPORTS as u64)
        );
        let long = "x".repeat(MOST_BYTES / 3);
        for began in 50..60 {
            text = joined(text.as_bytes(), &report("7", began, &[&long])).unwrap();
            assert!(text.len() <= MOST_BYTES, "{}", text.len());
        }
        assert_eq!(parse(text.as_bytes()).last().unwrap().began, 59);
        assert!(joined(b"", &report("7", 1, &[&long, &long, &long])).is_err());
    }

    #[test]
    fn a_users_share_is_bounded_by_number_and_age() {
        let top = tempfile::tempdir().unwrap();
        for n in 0..MOST_JOBS + 8 {
            let file = std::fs::File::create(top.path().join(format!("{n:03}.json"))).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1000 + n as u64))
                .unwrap();
        }
        let own = Dir::open(top.path()).unwrap();
        prune(&own, 0).unwrap();
        let mut names = own.names(100).unwrap();
        names.sort();
        assert_eq!((names.len(), names[0].to_str()), (MOST_JOBS, Some("008.json")));
        prune(&own, 1000 + MOST_JOBS as u64 + 7).unwrap();
        assert_eq!(own.names(100).unwrap(), ["039.json"]);
    }
}
