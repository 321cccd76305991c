//! The job log, in GNU parallel's format (`--joblog`), so that its tools read ours and we read its.

use crate::engine::End;
use crate::regular::regular;
use mpsd_core::Refusal;
use mpsd_core::text::one_line;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const HEADER: &str = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n";
/// The keepers of a pack that was killed hold its log until their commands have ended.
const PATIENCE: Duration = Duration::from_secs(15);

/// A log that is written. The keepers write successes, so that none is forgotten if we are killed;
/// we write the rest.
#[derive(Debug)]
pub struct JobLog {
    file: File,
    /// Its keepers share the lock: it is not released before they have ended.
    _lock: Option<Flock<File>>,
}

impl JobLog {
    /// Opens `path`; without `go_on` it truncates the log.
    pub fn open(path: &Path, go_on: bool) -> Result<Self, Refusal> {
        Self::open_within(path, go_on, PATIENCE)
    }

    fn open_within(path: &Path, go_on: bool, patience: Duration) -> Result<Self, Refusal> {
        let refused = |why: &str, allowed| refusal(path, why, allowed);
        let mut options = OpenOptions::new();
        let opened = regular(options.create(true).append(true).read(true), path);
        let opened = opened.and_then(|file| Ok((file.try_clone()?, file)));
        let (file, held) = opened.map_err(|error| {
            let allowed = "--results or --joblog with a place of yours";
            refused(&format!("cannot be written: {error}"), allowed)
        })?;
        let lock = match lock(held, patience) {
            Ok(lock) => Some(lock),
            Err(Errno::EWOULDBLOCK) => {
                let allowed = "--results with another directory";
                return Err(refused("another pack writes it", allowed));
            }
            // A file system without locks.
            Err(_) => None,
        };
        let log = Self { file, _lock: lock };
        match log.begin(go_on) {
            Ok(true) => Ok(log),
            Ok(false) => {
                let allowed = "--joblog with a new file or a log of pack's";
                Err(refused(
                    "it is no job log, and would be overwritten",
                    allowed,
                ))
            }
            Err(error) => Err(refused(&format!("cannot be written: {error}"), "")),
        }
    }

    /// Removes the last line if its writer was killed before the end. `false`: the file has another
    /// header than ours.
    fn begin(&self, go_on: bool) -> std::io::Result<bool> {
        let mut bytes = Vec::new();
        (&self.file).read_to_end(&mut bytes)?;
        if !bytes.is_empty() && !bytes.starts_with(HEADER.as_bytes()) {
            return Ok(false);
        }
        let end = bytes.iter().rposition(|byte| *byte == b'\n');
        let kept = end.filter(|_| go_on).map_or(0, |at| at + 1);
        self.file.set_len(kept as u64)?;
        if kept == 0 {
            self.write(HEADER.as_bytes())?;
        }
        Ok(true)
    }

    /// In one piece: several write at the end of the same file.
    pub fn write(&self, line: &[u8]) -> std::io::Result<()> {
        (&self.file).write_all(line)
    }
}

impl AsFd for JobLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn lock(mut file: File, patience: Duration) -> Result<Flock<File>, Errno> {
    let begin = Instant::now();
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Err((same, Errno::EWOULDBLOCK)) if begin.elapsed() < patience => file = same,
            other => return other.map_err(|(_, errno)| errno),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The line of a command that has ended; `bytes`: what it wrote.
pub fn line(seq: u64, host: &str, end: &End, bytes: u64, command: &OsStr) -> Vec<u8> {
    let code = match &end.not_started {
        // GNU parallel's, of a command that took too long.
        _ if end.late => -1,
        Some(_) => 126,
        None => end.code.map_or(0, i32::from),
    };
    let signal = end.signal.unwrap_or(0);
    let (began, seconds) = (end.began, end.seconds);
    let line = format!("{seq}\t{host}\t{began:.3}\t{seconds:10.3}\t0\t{bytes}\t{code}\t{signal}\t");
    [line.as_bytes(), command.as_bytes(), b"\n"].concat()
}

/// What a log says of a command: whether its last run succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Past {
    pub good: bool,
    pub command: OsString,
}

/// The logs of all nodes' parts of `path`: itself, and with a number behind a dot. Other files may
/// have such names.
pub fn logs_of(path: &Path) -> Vec<(Option<u64>, PathBuf)> {
    let (Some(name), Some(directory)) = (path.file_name(), path.parent()) else {
        return Vec::new();
    };
    let here = directory == Path::new("");
    let directory = if here { Path::new(".") } else { directory };
    let part = |file: OsString| {
        let rest = file.as_bytes().strip_prefix(name.as_bytes())?;
        let node = match rest.strip_prefix(b".") {
            Some(digits) => Some(std::str::from_utf8(digits).ok()?.parse().ok()?),
            None => rest.is_empty().then_some(None)?,
        };
        Some((node, directory.join(file)))
    };
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let parts = entries.filter_map(|entry| part(entry.file_name()));
    parts.filter(|(_, path)| is_log(path)).collect()
}

fn is_log(path: &Path) -> bool {
    let mut begin = Vec::new();
    let read = regular(OpenOptions::new().read(true), path)
        .and_then(|file| file.take(HEADER.len() as u64).read_to_end(&mut begin));
    read.is_ok() && begin == HEADER.as_bytes()
}

pub fn refusal(path: &Path, why: impl Into<String>, allowed: &str) -> Refusal {
    let name = one_line(&path.display().to_string(), 200);
    Refusal::new(format!("job log '{name}'"), why, allowed)
}

/// Reads the logs of all nodes' parts of `path`. A line that a killed writer has left unfinished
/// is none.
pub fn read_all(path: &Path) -> Result<BTreeMap<u64, Past>, Refusal> {
    let unread = |path: &Path, why| refusal(path, why, "a log of this pack, or no --resume");
    let is_foreign = std::fs::metadata(path).is_ok_and(|about| !about.is_file() || about.len() > 0);
    if is_foreign && !is_log(path) {
        return Err(unread(path, "it is no job log".to_owned()));
    }
    let mut all: BTreeMap<u64, Past> = BTreeMap::new();
    for (_, path) in logs_of(path) {
        let failed = |error| unread(&path, format!("cannot be read: {error}"));
        let bytes = std::fs::read(&path).map_err(failed)?;
        let whole = bytes.split_inclusive(|byte| *byte == b'\n');
        let whole = whole.filter_map(|line| line.strip_suffix(b"\n"));
        for (number, line) in whole.enumerate().skip(1) {
            let Some((seq, past)) = past(line) else {
                let why = format!("line {} is none of GNU parallel's format", number + 1);
                return Err(unread(&path, why));
            };
            // A success stays one.
            if all.get(&seq).is_none_or(|before| !before.good) {
                all.insert(seq, past);
            }
        }
    }
    Ok(all)
}

fn past(line: &[u8]) -> Option<(u64, Past)> {
    let fields: Vec<&[u8]> = line.splitn(9, |byte| *byte == b'\t').collect();
    let number = |at: usize| {
        let digits = std::str::from_utf8(fields.get(at)?).ok()?;
        digits.trim().parse::<i64>().ok()
    };
    let command = OsString::from_vec(fields.get(8)?.to_vec());
    let good = number(6)? == 0 && number(7)? == 0;
    Some((u64::try_from(number(0)?).ok()?, Past { good, command }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(code: u8) -> End {
        End {
            code: Some(code),
            began: 1_360_490_623.067,
            seconds: 3.445,
            ..End::default()
        }
    }

    fn why<T: std::fmt::Debug>(result: Result<T, impl ToString>) -> String {
        result.map_err(|e| e.to_string()).unwrap_err()
    }

    #[test]
    fn a_line_is_as_gnu_parallel_writes_it() {
        let text = |end: &End| {
            let line = line(4, "host", end, 1222, "echo a\tb".as_ref());
            String::from_utf8(line).unwrap()
        };
        let good = "4\thost\t1360490623.067\t     3.445\t0\t1222\t0\t0\techo a\tb\n";
        assert_eq!(text(&end(0)), good);
        let absent = End {
            not_started: Some("no shell".into()),
            ..End::default()
        };
        assert!(text(&absent).contains("\t126\t0\t"));
    }

    #[test]
    fn a_log_is_read_again_and_half_a_line_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("joblog");
        let log = JobLog::open(&path, false).unwrap();
        for (seq, code) in [(1, 0), (2, 7), (3, 1), (3, 0)] {
            let line = line(seq, "h", &end(code), 0, "x\ty".as_ref());
            log.write(&line).unwrap();
        }
        log.write(b"4\th\t1").unwrap();
        let read_all = || read_all(&path);
        let past = read_all().unwrap();
        assert_eq!([1, 2, 3].map(|seq| past[&seq].good), [true, false, true]);
        assert_eq!(
            (past.len(), &past[&1].command),
            (3, &OsString::from("x\ty"))
        );
        drop(log);
        let log = JobLog::open(&path, true).unwrap();
        log.write(&line(5, "h", &end(0), 0, "x".as_ref())).unwrap();
        drop(log);
        let known = read_all().unwrap();
        assert!(known.len() == 4 && known[&5].good, "it goes on");
        for (name, text) in [
            ("joblog.1", &*format!("{HEADER}9\th\t1\t1\t0\t0\t0\t0\tz\n")),
            ("joblog.old", "x"),
            ("joblog.2", "0.1 0.2\n0.3 0.4\n"),
        ] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        assert_eq!(read_all().unwrap().len(), 5, "and another node's");
        JobLog::open(&path, false).unwrap();
        assert_eq!(read_all().unwrap().len(), 1);
        std::fs::write(&path, format!("{HEADER}b\n")).unwrap();
        assert!(why(read_all()).contains("line 2"));
    }

    #[test]
    fn a_file_without_the_header_is_neither_written_nor_one_of_the_logs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        std::fs::write(&path, "echo a command\n").unwrap();
        for go_on in [false, true] {
            let refused = why(JobLog::open(&path, go_on));
            assert!(refused.contains("no job log"), "{refused}");
        }
        assert!(why(read_all(&path)).contains("no job log"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "echo a command\n");
        std::fs::write(dir.path().join("run.1"), "0.1\t0.2\n").unwrap();
        std::fs::write(dir.path().join("run.2"), HEADER).unwrap();
        let second = path.with_extension("2");
        assert_eq!(logs_of(&path), [(Some(2), second)]);
        std::fs::write(&path, "").unwrap();
        drop(JobLog::open(&path, true).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), HEADER);
    }

    #[test]
    fn no_fifo_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        for name in ["run", "run.1"] {
            nix::unistd::mkfifo(&dir.path().join(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
        }
        assert_eq!(logs_of(&path), []);
        assert!(why(read_all(&path)).contains("no job log"));
        // A log is read and written, and such an open never waits for the FIFO's other end.
        let refused = why(JobLog::open(&path, false));
        assert!(refused.contains("no regular file"), "{refused}");
    }

    #[test]
    fn two_packs_write_no_log_together() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("joblog");
        let open = || JobLog::open_within(&path, false, Duration::ZERO);
        let first = open().unwrap();
        first.write(b"1\t").unwrap();
        let refused = why(open());
        assert!(refused.contains("another pack writes it"), "{refused}");
        drop(first);
        open().unwrap();
    }
}
