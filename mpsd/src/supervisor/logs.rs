//! Files of the job's user, who may have made each a link, a FIFO or a device.

use crate::job::spec::Spec;
use mpsd_core::text::one_line;
use nix::fcntl::OFlag;
use nix::unistd::{Gid, fchown, getegid};
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::{FlockType, fcntl_getlk};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

pub const CONTROL_LOG: &str = "control.log";
const EARLIER_LOG: &str = "control.log.1";
const USER_LOG: &str = "mpsd.log";
const LONGEST_LINE: usize = 4096;
const KEPT: usize = 12;
const LONGEST_NOTE: u64 = 4096;

/// A pipe without a reader, or a terminal, must not block us.
const NO_WAIT: OFlag = OFlag::O_NONBLOCK.union(OFlag::O_NOCTTY);

fn open_to_append(path: &Path, flags: OFlag) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(flags.bits())
        .open(path)
}

/// Opens a file of the user's, if it is a regular one and no link.
pub fn open_to_read(path: &Path) -> io::Result<File> {
    let flags = NO_WAIT | OFlag::O_NOFOLLOW;
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(flags.bits()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

#[derive(Debug)]
pub struct Tail {
    file: File,
    rest: Vec<u8>,
    last: VecDeque<String>,
}

impl Tail {
    /// Opens the log twice: for the daemon to append to, and for us to read.
    pub fn create(directory: &Path) -> io::Result<(File, Self)> {
        let path = directory.join(CONTROL_LOG);
        let writer = open_to_append(&path, NO_WAIT | OFlag::O_NOFOLLOW)?;
        let file = open_to_read(&path)?;
        let (rest, last) = (Vec::new(), VecDeque::new());
        Ok((writer, Self { file, rest, last }))
    }

    /// Gives the log another name. Its daemon goes on to write into it.
    pub fn set_aside(directory: &Path) -> io::Result<()> {
        std::fs::rename(directory.join(CONTROL_LOG), directory.join(EARLIER_LOG))
    }

    pub fn lines(&mut self) -> Vec<String> {
        let mut block = [0_u8; 16 * 1024];
        let mut lines = Vec::new();
        while let Ok(n @ 1..) = self.file.read(&mut block) {
            for byte in &block[..n] {
                match byte {
                    b'\n' => {
                        lines.push(String::from_utf8_lossy(&self.rest).into_owned());
                        self.rest.clear();
                    }
                    _ if self.rest.len() < LONGEST_LINE => self.rest.push(*byte),
                    _ => {}
                }
            }
        }
        self.last.extend(lines.iter().cloned());
        self.last.drain(..self.last.len().saturating_sub(KEPT));
        lines
    }

    pub fn last(&self) -> Vec<String> {
        self.last.iter().map(|line| one_line(line, 300)).collect()
    }
}

/// For the job's user. A full disk loses lines and does no other harm.
#[derive(Debug, Default)]
pub struct UserLog(Option<File>);

impl UserLog {
    pub fn open(spec: &Spec) -> Self {
        let first = spec.daemons.first();
        let flags = NO_WAIT | OFlag::O_NOFOLLOW;
        let log = first.and_then(|daemon| open_to_append(&daemon.log.join(USER_LOG), flags).ok());
        // Tells [`owner`] our pid, and ends with us.
        let _ = log
            .as_ref()
            .map(|log| fcntl_lock(log, FlockOperation::NonBlockingLockExclusive));
        Self(log)
    }

    pub fn line(&mut self, text: &str) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let (seconds, ms) = (now.as_secs(), now.subsec_millis());
        let line = format!("{seconds}.{ms:03} {}\n", one_line(text, 500));
        if let Some(file) = &mut self.0 {
            let _ = file.write_all(line.as_bytes());
        }
    }
}

/// The pid of the `mpsd` that writes the log in `directory`, by the user's word.
pub fn owner(directory: &Path) -> Option<i32> {
    let log = open_to_read(&directory.join(USER_LOG)).ok()?;
    let lock = fcntl_getlk(log, &FlockType::WriteLock.into()).ok()??;
    Some(lock.pid?.as_raw_pid())
}

/// This process has the daemons' group, and so has a file that it makes: that gets `group`.
pub fn append_note(file: &Path, group: Option<u32>, from: impl Read) -> Result<(), String> {
    let append = || {
        let mut text = Vec::new();
        from.take(LONGEST_NOTE).read_to_end(&mut text)?;
        let mut file = open_to_append(file, NO_WAIT)?;
        let about = file.metadata()?;
        if about.gid() == getegid().as_raw() {
            fchown(&file, None, group.map(Gid::from_raw))?;
        }
        match about.is_file() {
            true => file.write_all(&text),
            false => Err(io::Error::other("it is no ordinary file")),
        }
    };
    append().map_err(|error| format!("'{}': {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;

    #[test]
    fn lines_come_once_whole_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, mut tail) = Tail::create(dir.path()).unwrap();
        writer.write_all(b"one\ntw").unwrap();
        assert_eq!(tail.lines(), ["one"]);
        writer.write_all(b"o\n").unwrap();
        writer.write_all(&[b'x'; 10_000]).unwrap();
        writer.write_all(b"\n").unwrap();
        let lines = tail.lines();
        assert_eq!((lines[0].as_str(), lines[1].len()), ("two", LONGEST_LINE));
        assert!(tail.lines().is_empty());
        assert_eq!(tail.last()[..2], ["one", "two"]);
    }

    #[test]
    fn a_log_is_a_regular_file_and_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join(CONTROL_LOG);
        std::os::unix::fs::symlink("/etc/passwd", &log).unwrap();
        assert!(Tail::create(dir.path()).is_err());
        std::fs::remove_file(&log).unwrap();
        nix::unistd::mkfifo(&log, Mode::S_IRWXU).unwrap();
        assert!(Tail::create(dir.path()).is_err());
    }

    /// The directory service has no such group, and the caller is root, which may give any.
    #[test]
    fn a_note_is_appended_to_a_regular_file_only_and_only_a_new_one_gets_the_users_group() {
        let place = tempfile::tempdir().unwrap();
        let [new, old, pipe] = ["new", "old", "pipe"].map(|name| place.path().join(name));
        std::fs::write(&old, "").unwrap();
        std::os::unix::fs::chown(&old, None, Some(54_322)).unwrap();
        for (file, group) in [(&new, 54_321), (&old, 54_322)] {
            append_note(file, Some(54_321), &b"one\n"[..]).unwrap();
            append_note(file, None, &b"two\n"[..]).unwrap();
            assert_eq!(std::fs::read_to_string(file).unwrap(), "one\ntwo\n");
            assert_eq!(file.metadata().unwrap().gid(), group);
        }
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        for other in [Path::new("/dev/null"), place.path(), &pipe] {
            let why = append_note(other, None, &b"x\n"[..]).unwrap_err();
            assert!(why.contains(&other.display().to_string()), "{why}");
        }
    }
}
