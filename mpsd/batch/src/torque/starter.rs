//! A Torque mom's `$job_starter`, which alone reaches the tasks that TM starts (`pbsdsh`, an MPI
//! launcher): they read no profile. The mom reads its configuration at its start and on SIGHUP
//! (docs/facts/pbs.md#environment-into-the-job).

use crate::batch_system::Unattached;
use crate::host::{Host, began};
use crate::pbs::{Installation, MOST_CONF};
use mpsd_sys::process::Process;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A starter with this text is ours, or a site's own that attaches tasks.
const OURS: &str = "mpsctl exec";
const STARTER: &str = "$job_starter";
const MOST_STARTER: usize = 64 << 10;
/// How much a process's start is rounded up, and the time of a file down. Seconds.
const ROUNDED: i64 = 2;

/// By the last line of the mom's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Starter {
    Absent,
    Ours(PathBuf),
    /// The site's own, which does not call us or is not there.
    Foreign(PathBuf),
    /// `$job_starter_run_privileged` is not surely off: a starter would run every task as root.
    Privileged {
        ours: bool,
    },
    Unread(String),
}

impl Starter {
    pub fn of(pbs: &Installation, host: &dyn Host) -> Self {
        let text = match config(pbs, host) {
            Ok(text) => text.unwrap_or_default(),
            Err(error) => return Self::Unread(error),
        };
        let paths = values(&text, STARTER).filter_map(|value| value.split_whitespace().next());
        let path = paths.last().map(PathBuf::from);
        let ours = path.as_deref().is_some_and(|path| is_ours(path, host));
        match path {
            _ if may_be_privileged(&text) => Self::Privileged { ours },
            None => Self::Absent,
            Some(path) if ours => Self::Ours(path),
            Some(path) => Self::Foreign(path),
        }
    }
}

fn config(pbs: &Installation, host: &dyn Host) -> Result<Option<String>, String> {
    host.text(&pbs.mom_config(), MOST_CONF)
}

pub fn may_run_as_root(pbs: &Installation, host: &dyn Host) -> Option<PathBuf> {
    let safe = matches!(config(pbs, host), Ok(Some(text)) if !may_be_privileged(&text));
    (!safe).then(|| pbs.mom_config())
}

pub fn names(config: &str, starter: &Path) -> bool {
    let first = |value: &str| value.split_whitespace().next().map(PathBuf::from);
    values(config, STARTER).any(|value| first(value).as_deref() == Some(starter))
}

/// The line that would be lost with any starter, which learns of no login shell and no `$preexec`.
pub fn own_way_with_shells(pbs: &Installation, host: &dyn Host) -> Option<&'static str> {
    let text = config(pbs, host).ok()??;
    let off = |name: &&str| values(&text, name).filter_map(boolean).last() == Some(false);
    let logins = ["$source_login_batch", "$source_login_interactive"];
    let preexec = values(&text, "$preexec").last();
    let preexec = preexec.is_some_and(|value| !value.is_empty());
    let own = logins.into_iter().find(off);
    own.or(preexec.then_some("$preexec"))
}

/// A line that the mom does not understand is no "no".
fn may_be_privileged(config: &str) -> bool {
    let last = values(config, "$job_starter_run_privileged").last();
    last.is_some_and(|value| boolean(value) != Some(false))
}

/// The values of `name` in a mom's configuration, as the mom reads it (Torque 6.1, parse_config.c).
pub(super) fn values<'t>(config: &'t str, name: &str) -> impl Iterator<Item = &'t str> {
    config.lines().filter_map(move |line| {
        let line = line.split('#').next()?.trim();
        let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '_' | '$');
        let end = line.find(|c| !in_name(c)).unwrap_or(line.len());
        let (found, value) = line.split_at(end);
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// As the mom reads a boolean (`setbool` of the same file); `None`: it ignores the line.
fn boolean(value: &str) -> Option<bool> {
    match value.as_bytes().first()?.to_ascii_lowercase() {
        b't' | b'y' | b'1' => Some(true),
        b'f' | b'n' | b'0' => Some(false),
        b'o' if value.eq_ignore_ascii_case("on") => Some(true),
        b'o' if value.eq_ignore_ascii_case("off") => Some(false),
        _ => None,
    }
}

fn is_ours(path: &Path, host: &dyn Host) -> bool {
    let text = host.text(path, MOST_STARTER).ok().flatten();
    host.executable(path) && text.is_some_and(|text| text.contains(OURS))
}

/// Why the mom does not attach the tasks that TM starts; `None`: it does.
pub fn unattached(pbs: &Installation, host: &dyn Host) -> Option<Unattached> {
    // Only a mom starts tasks for TM; without one, the prologue was started by hand.
    if !pbs.is_here() {
        return None;
    }
    let config = pbs.mom_config();
    let (config, install) = (config.display(), "'mpsctl pbs install' on the node");
    let starter = Starter::of(pbs, host);
    let no_way_round = starter == Starter::Privileged { ours: true };
    let tm = "attach tasks started by TM";
    let (why, remedy) = match starter {
        Starter::Ours(path) => {
            let why = format!("the mom has not read the $job_starter of '{config}', to {tm}");
            (why, reread_needed(pbs, &path)?)
        }
        Starter::Absent => {
            let why = format!("'{config}' has no $job_starter to {tm}");
            (why, install.into())
        }
        Starter::Foreign(path) => {
            let it = format!("$job_starter '{}'", path.display());
            let why = format!("'{config}' has the {it}, which does not {tm}");
            (why, format!("{install}, which says how to add ours"))
        }
        Starter::Privileged { .. } => {
            let user = "and our starter runs as the job's user only";
            let why = format!("'{config}' has $job_starter_run_privileged, {user}");
            (why, "that line says false".into())
        }
        Starter::Unread(why) => {
            let why = format!("{why}: nothing may {tm}");
            (why, "that file to be readable".into())
        }
    };
    Some(Unattached {
        why,
        remedy,
        no_way_round,
    })
}

/// The command by which the mom reads its file; `None`: `starter` is in force, or no mom runs.
pub fn reread_needed(pbs: &Installation, starter: &Path) -> Option<String> {
    let (pid, start) = running(pbs)?;
    let newer = start > fs::metadata(pbs.mom_config()).ok()?.mtime() + ROUNDED;
    let in_force = || in_force(pbs, pid, start).unwrap_or_default();
    let is_it = newer || in_force().split_whitespace().next().map(Path::new) == Some(starter);
    (!is_it).then(|| reread_command(pbs))?
}

pub fn reread_command(pbs: &Installation) -> Option<String> {
    running(pbs).map(|(pid, _)| format!("kill -HUP {pid}"))
}

/// The mom's process, and when it began, seconds since 1970. Its lock file ends in a NUL byte
/// (recorded).
fn running(pbs: &Installation) -> Option<(i32, i64)> {
    let lock = fs::read_to_string(pbs.mom_priv().join("mom.lock")).ok()?;
    let end = |c: char| c == '\0' || c.is_whitespace();
    let pid = lock.trim_matches(end).parse().ok().filter(|pid| *pid > 0)?;
    let stat = Process::find(pid)?.stat()?;
    Some((pid, began(stat.id.start_time)?))
}

/// The starter that the mom took last since its start, by its own log; empty: none since a SIGHUP;
/// `None`: the log does not tell. The time of the configuration is no proof: an administrator may
/// have changed other lines.
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
        let named = |line: Vec<u8>| starter_in(&line, pid);
        lines.map_while(Result::ok).filter_map(named).last()
    };
    logs.iter().rev().find_map(last)
}

/// The starter in a line of the mom's log, `DATE;CODE;   pbs_mom.PID;CLASS;jobstarter;PATH`; empty
/// for `process_hup;reset` (Torque 6.1, mom_main.c, parse_config.c). Older moms write no pid.
fn starter_in(line: &[u8], pid: i32) -> Option<String> {
    let line = String::from_utf8_lossy(line);
    let [_, _, mom, _, function, text] = line.splitn(6, ';').collect::<Vec<_>>()[..] else {
        return None;
    };
    let is_it = mom.trim() == "pbs_mom" || mom.trim() == format!("pbs_mom.{pid}");
    match function {
        "process_hup" if is_it => Some(String::new()),
        "jobstarter" if is_it => Some(text.trim().to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_read_as_the_mom_reads_it() {
        let config =
            "$job_starter /a\n# $job_starter /b\n\t$Job_Starter\t/c d # e\n$job_starter_x /f\n";
        let all: Vec<&str> = values(config, STARTER).collect();
        assert_eq!(all, ["/a", "/c d"]);
        assert!(names(config, Path::new("/a")) && names(config, Path::new("/c")));
        assert!(!names(config, Path::new("/b")) && !names("$job_starter /ab", Path::new("/a")));
        for (words, privileged) in [
            (&[][..], false),
            (&["True"], true),
            (&[""], true),
            (&["maybe"], true),
            (&["off"], false),
            (&["0"], false),
            (&["no", ""], true),
        ] {
            let line = |word: &&str| format!("$job_starter_run_privileged {word}\n");
            let config: String = words.iter().map(line).collect();
            assert_eq!(may_be_privileged(&config), privileged, "{config}");
        }
    }

    #[test]
    fn only_the_moms_own_lines_of_the_log_name_a_starter() {
        for (mom, rest, starter) in [
            ("pbs_mom.7", "jobstarter;/a b;c", Some("/a b;c")),
            ("pbs_mom", "jobstarter;/a", Some("/a")),
            ("pbs_mom.7", "process_hup;reset", Some("")),
            ("pbs_mom.77", "jobstarter;/a", None),
            ("pbs_mom.7", "prologalarm;15", None),
            ("x", "jobstarter;/a", None),
        ] {
            let line = format!("11/22/2026 00:10:12.123;02;   {mom};Svr;{rest}");
            assert_eq!(starter_in(line.as_bytes(), 7).as_deref(), starter, "{line}");
        }
        assert_eq!(starter_in(b"\xff;", 7), None);
    }
}
