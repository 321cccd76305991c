//! Job reports and counters on disk, kept up to a number and an age.
//!
//! On some file systems a reader can keep a file's lock, if it reads into a mapping of a FUSE file
//! system: XFS (`xfs_file_buffered_read`), ext4 with O_DIRECT. A process that replaces the file
//! then waits, and holds the lock of the directory. So no user may open root's report. Its user has
//! a copy in `/run/mpsd/reports/UID/JOB.json`, a report on each line, and only on a tmpfs, which
//! holds no lock while it reads. A user may enter that directory but not list it: listing holds a
//! directory's lock on any file system.

use super::by_child;
use crate::job::report::{JobOutcome, JobReport, VERSION, began};
use crate::job::tally::Tally;
use batch::drain::{Marker, markers};
use mpsd_core::config::Reports;
use mpsd_core::file::Durability;
use mpsd_core::trusted::open_trusted;
use mpsd_core::{JobId, Paths};
use mpsd_sys::deadline::Deadline;
use mpsd_sys::files::{Dir, FileError};
use mpsd_sys::guard::AskError;
use mpsd_sys::now;
use serde::{Deserialize, Serialize};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::time::Duration;

/// All users may pass through, and none may list.
const PASSABLE: u32 = 0o711;
/// No user lists what root changes.
const SECRET: u32 = 0o700;
/// What a directory with an ACL for one user shows. Without the ACL the group is root's.
const ONE_USERS: u32 = 0o710;
const ROOTS_FILE: u32 = 0o600;
/// In a directory that one user alone can pass through.
const COPY: u32 = 0o644;
const ROOT: (u32, u32) = (0, 0);
const LONGEST: usize = 1 << 20;
const MOST_NAMES: usize = 200_000;
/// Bounds of a user's copies, which lie in one file system with the pipes.
const MOST_JOBS: usize = 32;
const MOST_REPORTS: usize = 16;
const MOST_BYTES: usize = 64 * 1024;
/// Longest that an end waits for its report.
const WRITE_TIME: Duration = Duration::from_millis(500);
const COPY_TIME: Duration = Duration::from_millis(200);
/// For the counters, and our drains on the same disk.
const READ_TIME: Duration = Duration::from_secs(2);
const COUNTERS: &str = "counters";
const COUNTERS_LOCK: &str = ".counters.lock";
/// An unfinished file of this age was left by a writer that was killed ([`WRITE_TIME`]). Seconds.
const ABANDONED: u64 = 60;
const DAY: u64 = 86_400;

#[derive(Debug, thiserror::Error)]
pub enum ReportsError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Child(#[from] AskError),
    #[error("for its user; root has it: {0}")]
    Copy(Box<Self>),
    #[error("its user has no copy, which takes {0} bytes")]
    TooLong(usize),
    #[error("{0}")]
    Other(String),
}

/// In a child with a deadline: the disk may not answer.
pub fn keep(
    paths: &Paths,
    rule: &Reports,
    outcome: JobOutcome<'_>,
    limit: Duration,
) -> Result<(), ReportsError> {
    if rule.keep == 0 {
        return Ok(());
    }
    let keep = || match outcome {
        JobOutcome::Ended(report) => write(paths, rule, report),
        JobOutcome::NotStarted(report) => keep_copy(paths, report, rule.days),
        JobOutcome::Failed(kind) => {
            change(&directory(paths)?, |tally| tally.failed(kind)).map(drop)
        }
        JobOutcome::Drained => change(&directory(paths)?, |tally| tally.drained += 1).map(drop),
    };
    let deadline = Deadline::after(WRITE_TIME.min(limit));
    by_child(deadline, || keep().map_err(|why| why.to_string()))?.map_err(ReportsError::Other)
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    pub tally: Option<Tally>,
    pub drains: usize,
    pub waiting: usize,
}

/// `ready` jobs have their MPS now. Read by a child with a deadline.
pub fn counted(paths: &Paths, rule: &Reports, ready: usize) -> Result<Counted, ReportsError> {
    let counted = || -> Result<Counted, ReportsError> {
        let tally = match rule.keep {
            0 => None,
            _ => Some(change(&directory(paths)?, |tally| tally.look(ready))?),
        };
        let markers = markers::all(paths).into_iter();
        let (got, wait): (Vec<Marker>, _) = markers.partition(|marker| marker.delivered);
        Ok(Counted {
            tally,
            drains: got.len(),
            waiting: wait.len(),
        })
    };
    let deadline = Deadline::after(READ_TIME);
    by_child(deadline, || counted().map_err(|why| why.to_string()))?.map_err(ReportsError::Other)
}

fn change(reports: &Dir, change: impl FnOnce(&mut Tally)) -> Result<Tally, ReportsError> {
    let _held = reports.lock(COUNTERS_LOCK, Deadline::after(WRITE_TIME / 2))?;
    let bytes = reports.read_limited(COUNTERS, LONGEST)?;
    // If a crash of the node has garbled them, they begin at zero.
    let before: Tally = serde_json::from_slice(&bytes.unwrap_or_default()).unwrap_or_default();
    let mut tally = before.clone();
    change(&mut tally);
    if tally != before {
        let text = serde_json::to_vec(&tally)?;
        reports.write(COUNTERS, &text, ROOTS_FILE, Durability::Placed)?;
    }
    Ok(tally)
}

/// A node without tmpfiles does not have it before the first drain or report.
fn directory(paths: &Paths) -> Result<Dir, ReportsError> {
    let state = paths.state();
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(PASSABLE).create(state);
    made.map_err(|e| ReportsError::Other(format!("cannot make '{}': {e}", state.display())))?;
    let path = paths.reports();
    let name = path.file_name().unwrap_or_default();
    Ok(Dir::open(state)?.create_dir(name, SECRET, ROOT)?.0)
}

fn write(paths: &Paths, rule: &Reports, report: &JobReport) -> Result<(), ReportsError> {
    let reports = directory(paths)?;
    let name = report.file_name();
    let earlier = reports.read_limited(&name, LONGEST).ok().flatten();
    let earlier: Option<JobReport> = earlier.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    // A later end of a job that has been counted.
    let is_counted = earlier.as_ref().is_some_and(|earlier| !earlier.as_before);
    let report = match earlier {
        Some(earlier) => report.clone().after(earlier),
        None => report.clone(),
    };
    let text = serde_json::to_vec(&report)?;
    reports.write(&name, &text, ROOTS_FILE, Durability::Placed)?;
    if !is_counted {
        change(&reports, |tally| tally.end(&report))?;
    }
    let all = listed(&reports)?;
    let mut gone = unfinished(&reports, &all, now().saturating_sub(ABANDONED));
    let keep = usize::try_from(rule.keep).unwrap_or(usize::MAX);
    let others = all
        .into_iter()
        .filter(|other| *other != name && began(other).is_some());
    let others = dated(others, |name| written(&reports, name));
    gone.extend(too_many(others, keep, rule.days, now()));
    for name in gone {
        reports.remove_file(&name)?;
    }
    // Last: if it fails, root's report is kept.
    keep_copy(paths, &report, rule.days).map_err(|why| ReportsError::Copy(Box::new(why)))
}

fn listed(reports: &Dir) -> Result<Vec<String>, FileError> {
    let names = reports.names(MOST_NAMES)?.into_iter();
    Ok(names.filter_map(|name| name.into_string().ok()).collect())
}

fn written(dir: &Dir, name: &str) -> Option<u64> {
    let status = dir.status_of(name).ok().flatten()?;
    u64::try_from(status.st_mtime).ok()
}

/// What a killed writer left (see [`Dir::write`]), last written before `then`.
fn unfinished(reports: &Dir, all: &[String], then: u64) -> Vec<String> {
    let begun = |name: &str| name.strip_prefix('.')?.strip_suffix(".new").and_then(began);
    let is_old = |name: &str| written(reports, name).is_some_and(|time| time < then);
    let is_left = |name: &&String| begun(name).is_some() && is_old(name);
    all.iter().filter(is_left).cloned().collect()
}

/// The youngest first, without those that have no time.
fn dated(
    all: impl IntoIterator<Item = String>,
    time: impl Fn(&str) -> Option<u64>,
) -> Vec<(u64, String)> {
    let dated = |name: String| Some((time(&name)?, name));
    let mut dated: Vec<_> = all.into_iter().filter_map(dated).collect();
    dated.sort_unstable_by(|one, other| other.cmp(one));
    dated
}

/// Of the other reports (youngest first) those beyond `keep` with the one just written, and those
/// older than `days`.
///
/// The clock may be wrong. A report from the future counts as the oldest, and only the number
/// removes it. If no other report was written within a day of `now`, no age counts.
fn too_many(
    mut others: Vec<(u64, String)>,
    keep: usize,
    days: u32,
    now: u64,
) -> impl Iterator<Item = String> {
    let ahead = others.iter().take_while(|(time, _)| *time > now).count();
    others.rotate_left(ahead);
    let known = others.len() - ahead;
    let last = others[..known].first().map_or(0, |(time, _)| *time);
    let is_confirmed = now - last <= DAY;
    let oldest = now.saturating_sub(u64::from(days) * DAY);
    let is_old = move |place, time| place < known && is_confirmed && time < oldest;
    let all = others.into_iter().enumerate();
    let gone = all.filter(move |(place, (time, _))| place + 1 >= keep || is_old(*place, *time));
    gone.map(|(_, (_, name))| name)
}

#[derive(Debug, Default)]
pub struct StoredReports {
    pub reports: Vec<JobReport>,
    /// Others that cannot be read, or have another version's format.
    pub unread: usize,
}

/// Of jobs that began at `since` (seconds since 1970) or later.
pub fn read(paths: &Paths, since: u64) -> Result<StoredReports, FileError> {
    let mut found = StoredReports::default();
    let Some(reports) = Dir::find(&paths.reports())? else {
        return Ok(found);
    };
    let names = dated(listed(&reports)?, began).into_iter();
    for (_, name) in names.take_while(|(began, _)| *began >= since) {
        let bytes = match reports.read_limited(name, LONGEST) {
            Ok(Some(bytes)) => bytes,
            // Just removed.
            Ok(None) => continue,
            Err(_) => Vec::new(),
        };
        match parse(&bytes).pop() {
            Some(report) => found.reports.push(report),
            None => found.unread += 1,
        }
    }
    Ok(found)
}

fn keep_copy(paths: &Paths, report: &JobReport, days: u32) -> Result<(), ReportsError> {
    let run = Dir::open(paths.run())?;
    if !run.is_tmpfs() {
        return Ok(());
    }
    let path = paths.own_reports();
    let (all, _) = run.create_dir(path.file_name().unwrap_or_default(), PASSABLE, ROOT)?;
    let _held = all.lock(".lock", Deadline::after(COPY_TIME))?;
    let (own, _) = all.create_dir(report.uid.to_string(), ONE_USERS, ROOT)?;
    // Every time: the directory's maker may have been killed before this.
    own.let_pass(report.uid)?;
    let name = copy_name(&report.job);
    let earlier = own.read_limited(&name, LONGEST).ok().flatten();
    let text = joined(&earlier.unwrap_or_default(), report)?;
    own.write(&name, text.as_bytes(), COPY, Durability::Placed)?;
    Ok(prune(&own, &name, days, now())?)
}

fn copy_name(job: &JobId) -> String {
    format!("{}.json", job.whole().directory_name())
}

/// The report's line replaces an earlier one of the same run, and the oldest are dropped.
fn joined(earlier: &[u8], report: &JobReport) -> Result<String, ReportsError> {
    let mut reports = parse(earlier);
    reports.retain(|other| (&other.job, other.began) != (&report.job, report.began));
    reports.push(report.clone());
    let lines = reports.iter().map(serde_json::to_string);
    let mut lines: Vec<String> = lines.collect::<Result<_, _>>()?;
    lines.iter_mut().for_each(|line| line.push('\n'));
    let bytes_of = |lines: &[String]| lines.iter().map(String::len).sum::<usize>();
    while lines.len() > MOST_REPORTS || lines.len() > 1 && bytes_of(&lines) > MOST_BYTES {
        lines.remove(0);
    }
    match bytes_of(&lines) {
        bytes if bytes > MOST_BYTES => Err(ReportsError::TooLong(bytes)),
        _ => Ok(lines.concat()),
    }
}

fn parse(bytes: &[u8]) -> Vec<JobReport> {
    let lines = bytes.split(|byte| *byte == b'\n');
    let reports = lines.filter_map(|line| serde_json::from_slice::<JobReport>(line).ok());
    reports.filter(|report| report.version == VERSION).collect()
}

fn prune(own: &Dir, newest: &str, days: u32, now: u64) -> Result<(), FileError> {
    let others = listed(own)?.into_iter().filter(|name| name != newest);
    let others = dated(others, |name| Some(written(own, name).unwrap_or(0)));
    let mut gone = too_many(others, MOST_JOBS, days, now);
    gone.try_for_each(|name| own.remove_file(&name).map(drop))
}

/// Those of `job` and its steps that user `uid` may read; `None`: there is no copy.
pub fn read_own(paths: &Paths, uid: u32, job: &JobId) -> Result<Option<Vec<JobReport>>, FileError> {
    let own = paths.own_reports().join(uid.to_string());
    let path = own.join(copy_name(job));
    match open_trusted(&path).and_then(|file| file.read(LONGEST)) {
        Ok(bytes) => Ok(Some(parse(&bytes))),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    fn touch(dir: &std::path::Path, name: &str, seconds: u64) {
        let file = std::fs::File::create(dir.join(name)).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds))
            .unwrap();
    }

    /// Of reports written on `days`, those that are removed at the end of the last day.
    fn gone(days: &[u64], keep: usize, age: u32) -> Vec<u64> {
        let (now, others) = days.split_last().unwrap();
        let others = dated(others.iter().map(u64::to_string), |name| {
            Some(name.parse::<u64>().ok()? * DAY)
        });
        let gone = too_many(others, keep, age, now * DAY);
        gone.map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn the_oldest_are_removed_by_number_and_by_age() {
        let days = [102, 103, 104, 105];
        assert_eq!(gone(&days, 4, 30), [0; 0]);
        assert_eq!(gone(&days, 3, 30), [102]);
        assert_eq!(gone(&days, 1, 30), [104, 103, 102]);
        assert_eq!(gone(&days, 4, 2), [102]);
        let top = tempfile::tempdir().unwrap();
        (0..40).for_each(|n| touch(top.path(), &format!("{n:03}.json"), DAY + n));
        let own = Dir::open(top.path()).unwrap();
        prune(&own, "039.json", 1, DAY + 39).unwrap();
        assert_eq!(listed(&own).unwrap().len(), MOST_JOBS);
        prune(&own, "039.json", 1, 2 * DAY + 38).unwrap();
        assert_eq!(listed(&own).unwrap().len(), 2, "the last two");
    }

    #[test]
    fn a_clock_that_is_wrong_at_one_end_costs_no_report() {
        // A month ahead at one end.
        assert_eq!(gone(&[100, 101, 101, 132], 1000, 30), [0; 0]);
        // And set back.
        assert_eq!(gone(&[100, 101, 132, 101], 1000, 30), [0; 0]);
        // Those from the future make room for later ones.
        assert_eq!(gone(&[101, 130, 131, 132, 102], 3, 30), [131, 130]);
        // Not yet set at the first ends after a boot.
        assert_eq!(gone(&[100, 101, 0], 1000, 30), [0; 0]);
    }

    #[test]
    fn what_a_killed_writer_left_is_removed_once_nobody_can_be_writing_it() {
        let top = tempfile::tempdir().unwrap();
        let old = ".7.40.json.new";
        for name in [".8.50.json.new", ".other.new", "7.30.json"] {
            touch(top.path(), name, now());
        }
        touch(top.path(), old, now() - 2 * ABANDONED);
        let reports = Dir::open(top.path()).unwrap();
        let all = listed(&reports).unwrap();
        assert_eq!(unfinished(&reports, &all, now() - ABANDONED), [old]);
    }

    fn report(job: &str, began: u64, notes: &[&str]) -> JobReport {
        JobReport {
            job: JobId::parse(job).unwrap(),
            began,
            notes: notes.iter().map(|note| (*note).to_owned()).collect(),
            ..crate::job::report::tests::report()
        }
    }

    /// A copy on a disk would outlive the boot, and nobody would remove it.
    #[test]
    fn copies_are_kept_in_a_tmpfs_alone() {
        for top in ["/dev/shm", "/var/tmp"] {
            let run = tempfile::tempdir_in(top).unwrap();
            let paths = Paths::new(run.path(), run.path());
            keep_copy(&paths, &report("7", 1, &[]), 30).unwrap();
            let is_tmpfs = Dir::open(run.path()).unwrap().is_tmpfs();
            assert_eq!(paths.own_reports().exists(), is_tmpfs, "{top}");
        }
    }

    #[test]
    fn a_copy_has_a_jobs_steps_and_runs_each_once_and_the_youngest_that_fit() {
        for (job, name) in [
            ("7.3", "7.json"),
            ("7100.srv", "7100.srv.json"),
            ("16[1].vm", "16[1].vm.json"),
        ] {
            assert_eq!(copy_name(&JobId::parse(job).unwrap()), name);
        }
        let add = |text: String, next: JobReport| joined(text.as_bytes(), &next).unwrap();
        let runs = [("7", 10), ("7.0", 11), ("7", 20), ("7", 10)]
            .map(|(job, began)| report(job, began, &[]));
        let all = parse(runs.into_iter().fold(String::new(), add).as_bytes());
        let named = all.iter().map(|one| (one.job.as_str(), one.began));
        let once = [("7.0", 11), ("7", 20), ("7", 10)];
        assert_eq!(named.collect::<Vec<_>>(), once);
        assert_eq!(parse(b"{\n\xff\n\n{\"version\":1}\n"), []);
        let text = (0..40).fold(String::new(), |text, began| {
            add(text, report("7", began, &[]))
        });
        assert_eq!(parse(text.as_bytes()).len(), MOST_REPORTS);
        let long = "x".repeat(MOST_BYTES / 3);
        let text = (50..60).fold(text, |text, began| add(text, report("7", began, &[&long])));
        assert!(text.len() <= MOST_BYTES);
        assert_eq!(parse(text.as_bytes()).last().unwrap().began, 59);
        assert!(joined(b"", &report("7", 1, &[&long, &long, &long])).is_err());
    }
}
