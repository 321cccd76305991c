//! Whether a Torque mom uses the starter that its configuration names: it reads that file at its start and on SIGHUP alone
//! (docs/facts/pbs.md#environment-into-the-job).

use crate::scheduler::host::began;
use crate::scheduler::pbs::installation::Installation;
use crate::sys::process::Process;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How much a process's start is rounded up, and the time of a file down. Seconds.
const ROUNDED: i64 = 2;

/// The command that makes the mom of `pbs` read that `starter` is its own, where it runs and has not done so.
pub fn needed(pbs: &Installation, starter: &Path) -> Option<String> {
    let (pid, start) = running(pbs)?;
    let newer = start > fs::metadata(pbs.mom_config()).ok()?.mtime() + ROUNDED;
    let named = || Some(Path::new(in_force(pbs, pid, start)?.split_whitespace().next()?) == starter);
    (!newer && named() != Some(true)).then(|| command(pbs)).flatten()
}

/// The command that makes the mom of `pbs`, where it runs, read its configuration again.
pub fn command(pbs: &Installation) -> Option<String> {
    running(pbs).map(|(pid, _)| format!("kill -HUP {pid}"))
}

/// The mom's process, and when it began, seconds since 1970. Its lock file ends in a NUL byte (recorded).
fn running(pbs: &Installation) -> Option<(i32, i64)> {
    let lock = fs::read_to_string(pbs.mom_priv().join("mom.lock")).ok()?;
    let end = |c: char| c == '\0' || c.is_whitespace();
    let pid = lock.trim_matches(end).parse().ok().filter(|pid| *pid > 0)?;
    let stat = Process::find(pid)?.stat()?;
    Some((pid, began(stat.id.start_time)?))
}

/// The starter that the mom's own log says it took last since its start; empty: none since it forgot the last one.
/// `None`: the log does not tell. An administrator may change other lines: the file's time alone tells too little.
fn in_force(pbs: &Installation, pid: i32, start: i64) -> Option<String> {
    let entries = fs::read_dir(pbs.home.join("mom_logs")).ok()?.flatten();
    let is_since = |entry: &fs::DirEntry| {
        let about = entry.metadata().ok().filter(fs::Metadata::is_file);
        about.is_some_and(|about| about.mtime() + ROUNDED >= start)
    };
    let mut logs: Vec<_> = entries.filter(is_since).map(|entry| entry.path()).collect();
    logs.sort();
    let last = |log: &PathBuf| {
        let lines = BufReader::new(File::open(log).ok()?).split(b'\n');
        lines
            .map_while(Result::ok)
            .filter_map(|line| taken(&line, pid))
            .last()
    };
    logs.iter().rev().find_map(last)
}

/// `DATE;CODE;   pbs_mom.PID;CLASS;jobstarter;PATH` of the mom's log, and `process_hup;reset` before it reads its file again
/// (Torque 6.1, mom_main.c and parse_config.c). Older ones write no pid.
fn taken(line: &[u8], pid: i32) -> Option<String> {
    let line = String::from_utf8_lossy(line);
    let mut parts = line.splitn(6, ';').skip(2);
    let (mom, _, function, text) = (parts.next()?.trim(), parts.next()?, parts.next()?, parts.next()?);
    if mom != "pbs_mom" && mom != format!("pbs_mom.{pid}") {
        return None;
    }
    match function {
        "process_hup" => Some(String::new()),
        "jobstarter" => Some(text.trim().to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_moms_own_lines_tell_and_no_others() {
        let line = |name: &str, rest: &str| format!("11/22/2026 00:10:12.123;02;   {name};Svr;{rest}");
        let told = |name: &str, rest: &str| taken(line(name, rest).as_bytes(), 7);
        assert_eq!(told("pbs_mom.7", "jobstarter;/a b;c").as_deref(), Some("/a b;c"));
        assert_eq!(told("pbs_mom", "jobstarter;/a").as_deref(), Some("/a"));
        assert_eq!(told("pbs_mom.7", "process_hup;reset").as_deref(), Some(""));
        for (name, rest) in [
            ("pbs_mom.77", "jobstarter;/a"),
            ("pbs_mom.7", "prologalarm;15"),
            ("x", "jobstarter;/a"),
        ] {
            assert_eq!(told(name, rest), None, "{name} {rest}");
        }
        assert_eq!(taken(b"\xff;", 7), None);
    }
}
