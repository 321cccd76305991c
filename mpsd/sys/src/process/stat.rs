//! What `/proc` shows of a process, and of all processes at once (proc_pid_stat(5),
//! proc_pid_status(5)).

use crate::descriptors::read_at;
use derive_more::Display;
use mpsd_core::text::is_digits;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Names one process for ever: the kernel reuses pids, but not with the same start time.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, Serialize, Deserialize,
)]
#[display("{pid}")]
pub struct ProcessId {
    pub pid: i32,
    /// Clock ticks after boot (field 22 of `/proc/PID/stat`).
    pub start_time: u64,
}

/// State of a process, the letter of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    Running = b'R',
    /// S, and I for kernel threads.
    Sleeping = b'S',
    /// Uninterruptible: not even SIGKILL ends it now.
    Uninterruptible = b'D',
    /// Has ended, not yet reaped; holds no GPU.
    Defunct = b'Z',
    /// T and t: stopped by a signal or a tracer.
    Stopped = b'T',
    Dead = b'X',
}

impl State {
    fn from_letter(letter: u8) -> Self {
        match letter {
            b'R' => Self::Running,
            b'D' => Self::Uninterruptible,
            b'Z' => Self::Defunct,
            b'T' | b't' => Self::Stopped,
            b'X' | b'x' => Self::Dead,
            _ => Self::Sleeping,
        }
    }

    pub fn letter(self) -> char {
        char::from(self as u8)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    pub id: ProcessId,
    /// The command's name, which the process can choose: no proof.
    pub name: OsString,
    /// State of its first thread: see [`super::Process::state`].
    pub state: State,
    pub threads: i32,
    pub parent: i32,
}

impl Stat {
    /// The name stands in parentheses, and may hold parentheses, blanks and newlines.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let open = text.iter().position(|b| *b == b'(')?;
        let close = text.iter().rposition(|b| *b == b')')?;
        let pid = std::str::from_utf8(text.get(..open)?).ok()?;
        let pid = pid.trim().parse().ok()?;
        let name = OsString::from_vec(text.get(open + 1..close)?.to_vec());
        let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
        let rest: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| rest.get(number - 3)?.parse().ok(); // the fields after the name start at 3
        let start_time = rest.get(22 - 3)?.parse().ok()?;
        Some(Self {
            id: ProcessId { pid, start_time },
            name,
            state: State::from_letter(*rest.first()?.as_bytes().first()?),
            threads: field(20)?,
            parent: field(4)?,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uids {
    /// It decides what the process may signal.
    pub real: u32,
    pub effective: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRef {
    pub device: u64,
    /// Its inode there. No other file has it while a process runs this file.
    pub inode: u64,
}

/// The file that a process runs. If root owns it, it proves what the process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executable {
    pub file: FileRef,
    /// The kernel's path; ends in ` (deleted)` for a file removed or replaced since.
    pub path: PathBuf,
}

pub(super) fn parse_uids(status: &[u8]) -> Option<Uids> {
    let ids = ids(status, "Uid:")?;
    let (real, effective) = (*ids.first()?, *ids.get(1)?);
    Some(Uids { real, effective })
}

pub(super) fn ids(status: &[u8], name: &str) -> Option<Vec<u32>> {
    let mut lines = status.split(|b| *b == b'\n');
    let line = lines.find_map(|line| line.strip_prefix(name.as_bytes()))?;
    let ids = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    ids.map(|id| id.parse().ok()).collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub stat: Stat,
    pub uids: Uids,
}

/// The processes at one moment; each may have ended since (see [`super::ProcessId::open`]).
#[derive(Clone, Debug, Default)]
pub struct ProcessTable(Vec<Entry>);

impl ProcessTable {
    /// Reads what cannot hang. `None`: it is not complete. Processes that we may not read are left
    /// out.
    pub fn scan() -> Option<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let proc_fd = open("/proc", flags, Mode::empty()).ok()?;
        let mut listing = nix::dir::Dir::from_fd(proc_fd.try_clone().ok()?).ok()?;
        let read = |name: &str| {
            let stat = read_at(&proc_fd, &format!("{name}/stat"), 4096)?;
            Ok((stat, read_at(&proc_fd, &format!("{name}/status"), 65_536)?))
        };
        let mut entries = Vec::new();
        for entry in listing.iter() {
            let entry = entry.ok()?;
            let name = entry.file_name().to_str().ok();
            let Some(name) = name.filter(|name| is_digits(name)) else {
                continue;
            };
            match read(name) {
                Ok((stat, status)) => {
                    let both = Stat::parse(&stat).zip(parse_uids(&status));
                    entries.extend(both.map(|(stat, uids)| Entry { stat, uids }));
                }
                Err(Errno::ENOENT | Errno::ESRCH | Errno::EACCES | Errno::EPERM) => {}
                Err(_) => return None,
            }
        }
        Some(Self(entries))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter()
    }

    pub fn of_user(&self, uid: u32) -> impl Iterator<Item = &Entry> {
        self.iter().filter(move |entry| entry.uids.effective == uid)
    }

    pub fn children(&self, parent: i32) -> impl Iterator<Item = &Entry> {
        self.iter().filter(move |entry| entry.stat.parent == parent)
    }

    pub fn descendants(&self, ancestor: i32) -> Vec<&Entry> {
        let mut found: Vec<&Entry> = self.children(ancestor).collect();
        let mut at = 0;
        while let Some(entry) = found.get(at) {
            let pid = entry.stat.id.pid;
            // A pid can be its own ancestor if it was reused during the scan.
            let more: Vec<_> = self.children(pid).filter(|e| !found.contains(e)).collect();
            found.extend(more);
            at += 1;
        }
        found
    }
}
