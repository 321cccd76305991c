//! How the schedulers' folders reach the machine: files of root, and a scheduler's own commands.

use mpsd_core::file::{FileError, read_any};
use mpsd_core::text::one_line;
use mpsd_core::trusted::open_trusted;
use mpsd_sys::Exit;
use mpsd_sys::deadline::Deadline;
use mpsd_sys::spawn::Spawn;
use nix::sys::stat::fstat;
use nix::sys::statfs::{self, FsType, statfs};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes; a job's full status has some thousand, and qmgr's list of a node with GPUs as vnodes too.
const MOST_ANSWER: usize = 16 << 20;
/// Longest answer that an error repeats. Characters.
const SHOWN: usize = 160;
/// The usual file systems of one host alone. nix lacks ZFS and ramfs (statfs(2)).
const LOCAL: [FsType; 8] = [
    statfs::EXT4_SUPER_MAGIC,
    statfs::XFS_SUPER_MAGIC,
    statfs::BTRFS_SUPER_MAGIC,
    statfs::F2FS_SUPER_MAGIC,
    statfs::TMPFS_MAGIC,
    statfs::OVERLAYFS_SUPER_MAGIC,
    FsType(0x2fc1_2fc1),
    FsType(0x8584_58f6),
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// Standard output, then standard error.
    pub text: String,
}

impl Answer {
    /// The text of a command that ended with 0; else what `name` said, on one line.
    pub fn accepted(self, name: &str) -> Result<String, String> {
        match self.code {
            Some(0) => Ok(self.text),
            _ => {
                let said = one_line(self.text.trim(), SHOWN);
                Err(format!("{name} said: {said}"))
            }
        }
    }
}

pub trait Host {
    /// A file that only root can have put there, of at most `most` bytes; `None`: there is none.
    fn read(&self, path: &Path, most: usize) -> io::Result<Option<Vec<u8>>>;

    /// The text of such a file. An error is one line.
    fn text(&self, path: &Path, most: usize) -> Result<Option<String>, String> {
        let read = self.read(path, most);
        let read = read.map_err(|e| format!("cannot read '{}': {e}", path.display()))?;
        Ok(read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// The scheduler's own configuration, of any owner: its daemon, which is root, obeys it too.
    fn configuration(&self, path: &Path, most: usize) -> io::Result<Option<Vec<u8>>> {
        self.read(path, most)
    }

    fn minor(&self, path: &Path) -> io::Result<u32> {
        let about = std::fs::metadata(path)?;
        if !about.file_type().is_char_device() {
            return Err(io::Error::other("not a character device"));
        }
        let minor = nix::sys::stat::minor(about.rdev());
        u32::try_from(minor).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        let entries = std::fs::read_dir(dir)?;
        entries.map(|entry| Ok(entry?.file_name())).collect()
    }

    /// Whether other hosts may share this file: its file system is not a usual local one.
    fn may_be_shared(&self, path: &Path) -> bool {
        statfs(path).is_ok_and(|about| !LOCAL.contains(&about.filesystem_type()))
    }

    /// Whether `path` is a program that only root can have put there, and that root may execute.
    fn executable(&self, path: &Path) -> bool;

    /// Runs `program` (absolute, root's) without a shell, with `environment` and our own `PATH` and
    /// locale. Kills it at the deadline. Fails if it did not end, or if its answer is too long.
    fn run(
        &self,
        program: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
        deadline: Duration,
    ) -> Result<Answer, String>;

    fn name(&self) -> String;
}

#[derive(Debug, Clone, Copy, Default)]
pub struct ThisHost;

impl Host for ThisHost {
    fn read(&self, path: &Path, most: usize) -> io::Result<Option<Vec<u8>>> {
        answer(open_trusted(path).and_then(|file| file.read(most)))
    }

    fn configuration(&self, path: &Path, most: usize) -> io::Result<Option<Vec<u8>>> {
        answer(read_any(path, most))
    }

    fn executable(&self, path: &Path) -> bool {
        let found = open_trusted(path).ok();
        let about = found.and_then(|found| fstat(&found.file).ok());
        about.is_some_and(|about| about.st_mode & 0o100 != 0)
    }

    fn run(
        &self,
        program: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
        deadline: Duration,
    ) -> Result<Answer, String> {
        let mut spawn = Spawn::trusted(program).map_err(|error| error.to_string())?;
        spawn.args = arguments.iter().map(OsString::from).collect();
        let own = [("PATH", "/usr/bin:/bin"), ("LC_ALL", "C")];
        let all = own.iter().chain(environment);
        let all = all.map(|(name, value)| (name.into(), value.into()));
        spawn.env = all.collect();
        let ended = spawn.run(Deadline::after(deadline), MOST_ANSWER);
        let ended = ended.map_err(|error| error.to_string())?;
        let text = ended.text();
        let code = match ended.exit {
            Exit::Code(code) => Some(code.into()),
            Exit::Signal(_) => None,
        };
        Ok(Answer { code, text })
    }

    fn name(&self) -> String {
        let name = nix::unistd::gethostname().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }
}

pub fn boot_time() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let seconds = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    seconds.trim().parse().ok()
}

/// When a process began: `ticks` of 10 ms after the boot (field 22 of `/proc/PID/stat`), by the
/// present clock, as file times are.
pub fn started(ticks: u64) -> Option<SystemTime> {
    let per_second = sysconf(SysconfVar::CLK_TCK).ok()??.try_into().ok()?;
    let up = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?);
    let milliseconds = ticks.checked_mul(1000)?.checked_div(per_second)?;
    SystemTime::now().checked_sub(up.checked_sub(Duration::from_millis(milliseconds))?)
}

/// The same in seconds since 1970, rounded up.
pub fn began(ticks: u64) -> Option<i64> {
    let since_1970 = started(ticks)?.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since_1970.as_secs()).ok()?.checked_add(1)
}

fn answer(read: Result<Vec<u8>, FileError>) -> io::Result<Option<Vec<u8>>> {
    match read {
        Ok(bytes) => Ok(Some(bytes)),
        Err(gone) if gone.is_absent() => Ok(None),
        Err(FileError::Io { errno, .. }) => Err(errno.into()),
        Err(other) => Err(io::Error::other(other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_on_a_usual_local_file_system_is_this_hosts_alone() {
        let place = tempfile::tempdir().unwrap();
        let shared = |path: &Path| ThisHost.may_be_shared(path);
        assert!(!shared(place.path()) && !shared(Path::new("/run")));
        assert!(shared(Path::new("/proc/self/status")));
        assert!(!shared(&place.path().join("none")), "nothing to share");
    }
}
