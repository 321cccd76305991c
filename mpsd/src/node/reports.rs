//! Job reports on disk: written without waiting for the disk, kept up to a number and an age, read by root alone.
//!
//! A process that may read a file can keep the file's lock on some file systems (XFS: `xfs_file_buffered_read`), and whoever
//! removes it then waits. So no user may open a report; the job's own has a copy ([`own_reports`]).

use super::own_reports;
use crate::job::report::{JobReport, VERSION, began};
use crate::job::tally::Tally;
use crate::scheduler::drain::{Marker, markers};
use crate::sys::deadline::Deadline;
use crate::sys::files::Dir;
use crate::sys::guard::ask;
use mpsd_core::Paths;
use mpsd_core::config::Reports;
use mpsd_core::failure::FailureKind;
use serde::{Deserialize, Serialize};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The directory above, which has other things too.
const PASSABLE: u32 = 0o711;
/// The directory: nobody but root lists what root changes.
const SECRET: u32 = 0o700;
/// A report.
const FILE: u32 = 0o600;
/// Longest report that is read. Bytes.
const LONGEST: usize = 1 << 20;
/// More names than are ever kept.
const MOST_NAMES: usize = 200_000;
/// Time to write one and to remove old ones: an end waits for it, and no longer.
const WRITE_TIME: Duration = Duration::from_millis(500);
/// Time to read the numbers, and our drains, which lie on the same disk.
const READ_TIME: Duration = Duration::from_secs(2);
/// The numbers, and their lock.
const COUNTERS: &str = "counters";
const COUNTERS_LOCK: &str = ".counters.lock";
/// A file that was begun so long ago has nobody who ends it: whoever writes one is killed after [`WRITE_TIME`]. Seconds.
const ABANDONED: u64 = 60;

/// Writes `report` and removes what is too much, in a child with a deadline, `limit` at most: the disk may not answer.
///
/// # Errors
/// One line; nothing else is lost.
pub fn write(paths: &Paths, rule: &Reports, report: &JobReport, limit: Duration) -> Result<(), String> {
    if rule.keep == 0 {
        return Ok(());
    }
    by_child(limit, || write_here(paths, rule, report))
}

fn by_child(limit: Duration, write: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let question = || write().err().unwrap_or_default().into_bytes();
    match ask(Deadline::after(WRITE_TIME.min(limit)), question) {
        Ok(none) if none.is_empty() => Ok(()),
        Ok(why) => Err(String::from_utf8_lossy(&why).into_owned()),
        Err(none) => Err(none.to_string()),
    }
}

/// Counts a start that failed, in a child as [`write()`].
///
/// # Errors
/// One line; nothing else is lost.
pub fn count_failure(
    paths: &Paths,
    rule: &Reports,
    kind: FailureKind,
    limit: Duration,
) -> Result<(), String> {
    if rule.keep == 0 {
        return Ok(());
    }
    by_child(limit, || {
        change(&directory(paths)?, |tally| tally.failed(kind)).map(drop)
    })
}

/// The numbers, with the `ready` jobs that have their MPS now, and how many drains of ours wait and how many have got through.
/// In a child as [`write()`].
///
/// # Errors
/// One line.
pub fn counted(paths: &Paths, rule: &Reports, ready: usize) -> Result<Counted, String> {
    let question = || {
        let counted = || {
            let tally = match rule.keep {
                0 => None,
                _ => Some(change(&directory(paths)?, |tally| tally.look(ready))?),
            };
            let delivered = |marker: &Marker| marker.delivered;
            let (got, wait): (Vec<Marker>, _) = markers::all(paths).into_iter().partition(delivered);
            Ok(Counted {
                tally,
                drains: got.len(),
                waiting: wait.len(),
            })
        };
        let answer: Result<Counted, String> = counted();
        serde_json::to_vec(&answer).unwrap_or_default()
    };
    let answer = ask(Deadline::after(READ_TIME), question).map_err(|none| none.to_string())?;
    serde_json::from_slice(&answer).map_err(|e| e.to_string())?
}

/// What [`counted`] tells.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Since anything was counted on this node; `None`: the site has nothing written down.
    pub tally: Option<Tally>,
    /// Drains of ours that the scheduler has got.
    pub drains: usize,
    /// Those that it has not.
    pub waiting: usize,
}

/// Changes the numbers under their lock; what they are then.
fn change(reports: &Dir, change: impl FnOnce(&mut Tally)) -> Result<Tally, String> {
    let held = reports.lock(COUNTERS_LOCK, Deadline::after(WRITE_TIME / 2));
    let _held = held.map_err(|e| e.to_string())?;
    let bytes = reports.read_limited(COUNTERS, LONGEST);
    let bytes = bytes.map_err(|e| e.to_string())?.unwrap_or_default();
    // Garbled after a crash of the node: counted anew, as after any reset of a counter.
    let before: Tally = serde_json::from_slice(&bytes).unwrap_or_default();
    let mut tally = before.clone();
    change(&mut tally);
    if tally != before {
        let text = serde_json::to_vec(&tally).map_err(|e| e.to_string())?;
        let written = reports.write_whole(COUNTERS, &text, FILE);
        written.map_err(|e| e.to_string())?;
    }
    Ok(tally)
}

/// The directory of the reports, made where it is not there.
fn directory(paths: &Paths) -> Result<Dir, String> {
    // On a node without tmpfiles it is not there before the first drain or report.
    let made = DirBuilder::new()
        .recursive(true)
        .mode(PASSABLE)
        .create(paths.state());
    made.map_err(|e| format!("cannot make '{}': {e}", paths.state().display()))?;
    let state = Dir::open(paths.state()).map_err(|e| e.to_string())?;
    let name = paths.reports();
    let name = name.file_name().unwrap_or_default();
    let made = state.create_dir(name, SECRET, (0, 0));
    made.map(|(reports, _)| reports).map_err(|e| e.to_string())
}

fn write_here(paths: &Paths, rule: &Reports, report: &JobReport) -> Result<(), String> {
    let reports = directory(paths)?;
    let name = report.file_name();
    let earlier = earlier(&reports, &name);
    // A later end of a job that has been counted.
    let is_counted = earlier.as_ref().is_some_and(|earlier| !earlier.as_before);
    let report = match earlier {
        Some(earlier) => report.clone().after(earlier),
        None => report.clone(),
    };
    let text = serde_json::to_vec(&report).map_err(|e| e.to_string())?;
    let written = reports.write_whole(name, &text, FILE);
    written.map_err(|e| e.to_string())?;
    if !is_counted {
        change(&reports, |tally| tally.end(&report))?;
    }
    let oldest = now().saturating_sub(u64::from(rule.days) * 86_400);
    let all = listed(&reports)?;
    let mut gone = unfinished(&reports, &all, now().saturating_sub(ABANDONED));
    gone.extend(too_many(names(all), rule.keep, oldest));
    for name in gone {
        reports.remove_file(&name).map_err(|e| e.to_string())?;
    }
    // Last, and in another file system: whatever becomes of it, root's is kept.
    own_reports::keep(paths, &report, oldest).map_err(|why| format!("for its user; root has it: {why}"))
}

fn listed(reports: &Dir) -> Result<Vec<String>, String> {
    let names = reports.names(MOST_NAMES).map_err(|e| e.to_string())?;
    Ok(names
        .into_iter()
        .filter_map(|name| name.into_string().ok())
        .collect())
}

/// What a killed writer left of reports (see [`Dir::write_whole`]), last written before `then`.
fn unfinished(reports: &Dir, all: &[String], then: u64) -> Vec<String> {
    let begun = |name: &str| name.strip_prefix('.')?.strip_suffix(".new").and_then(began);
    let is_old = |name: &String| {
        let status = reports.status_of(name).ok().flatten();
        status.is_some_and(|status| u64::try_from(status.st_mtime).is_ok_and(|time| time < then))
    };
    let left = all.iter().filter(|name| begun(name).is_some() && is_old(name));
    left.cloned().collect()
}

/// The report of the job's earlier end, where there was one.
fn earlier(reports: &Dir, name: &str) -> Option<JobReport> {
    let bytes = reports.read_limited(name, LONGEST).ok()??;
    serde_json::from_slice(&bytes).ok()
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// The reports among the names of a directory, the youngest first.
fn names(all: Vec<String>) -> Vec<(u64, String)> {
    let reports = all.into_iter().filter_map(|name| Some((began(&name)?, name)));
    let mut found: Vec<_> = reports.collect();
    found.sort();
    found.reverse();
    found
}

/// Of these, the youngest first, those beyond the first `keep`, and those that began before `oldest`.
fn too_many(names: Vec<(u64, String)>, keep: u32, oldest: u64) -> Vec<String> {
    let keep = usize::try_from(keep).unwrap_or(usize::MAX);
    let names = names.into_iter().enumerate();
    let gone = names.filter(|(place, (began, _))| *place >= keep || *began < oldest);
    gone.map(|(_, (_, name))| name).collect()
}

/// The reports that are there.
#[derive(Debug, Default)]
pub struct StoredReports {
    /// The youngest first.
    pub reports: Vec<JobReport>,
    /// How many more there are that cannot be read, or have another version's format.
    pub unread: usize,
}

/// The reports of jobs that began at `since` (seconds since 1970) or later.
///
/// # Errors
/// One line: the directory cannot be read.
pub fn read(paths: &Paths, since: u64) -> Result<StoredReports, String> {
    let path: &Path = &paths.reports();
    let Some(reports) = Dir::find(path).map_err(|e| e.to_string())? else {
        return Ok(StoredReports::default());
    };
    let names = names(listed(&reports)?)
        .into_iter()
        .take_while(|(began, _)| *began >= since);
    let mut found = StoredReports::default();
    for (_, name) in names {
        let bytes = match reports.read_limited(name, LONGEST) {
            Ok(Some(bytes)) => bytes,
            // It has just been removed, as too old or one too many.
            Ok(None) => continue,
            Err(_) => Vec::new(),
        };
        match serde_json::from_slice::<JobReport>(&bytes) {
            Ok(report) if report.version == VERSION => found.reports.push(report),
            _ => found.unread += 1,
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_by_number_and_by_age() {
        let named = |of: &[u64]| {
            of.iter()
                .map(|began| (*began, format!("7.{began}.json")))
                .collect()
        };
        let gone = |keep, oldest| too_many(named(&[50, 40, 30, 20]), keep, oldest);
        assert_eq!(gone(4, 0), Vec::<String>::new());
        assert_eq!(gone(2, 0), ["7.30.json", "7.20.json"]);
        assert_eq!(gone(4, 40), ["7.30.json", "7.20.json"]);
    }

    #[test]
    fn the_name_of_a_report_says_when_its_job_began() {
        assert_eq!(began("4711.3.1700000000.json"), Some(1_700_000_000));
        for other in ["4711.json", ".4711.9.json.new", "x.1", "a.-1.json"] {
            assert_eq!(began(other), None, "{other}");
        }
    }

    #[test]
    fn what_a_killed_writer_left_goes_once_nobody_can_be_writing_it() {
        let top = tempfile::tempdir().unwrap();
        let left = [".7.40.json.new", ".8.50.json.new", ".other.new", "7.30.json"];
        for name in left {
            std::fs::write(top.path().join(name), "{").unwrap();
        }
        let long_ago = SystemTime::now() - Duration::from_secs(2 * ABANDONED);
        let old = std::fs::File::options()
            .write(true)
            .open(top.path().join(left[0]))
            .unwrap();
        old.set_modified(long_ago).unwrap();
        let reports = Dir::open(top.path()).unwrap();
        let all = listed(&reports).unwrap();
        assert_eq!(unfinished(&reports, &all, now() - ABANDONED), [left[0]]);
    }
}
