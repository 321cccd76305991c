//! All processes, read at once.

use super::stat::parse_uids;
use super::{Stat, Uids};
use crate::sys::descriptors::read_at;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub stat: Stat,
    pub uid: u32,
    /// Real user id, which decides what it may signal.
    pub real_uid: u32,
}

impl Entry {
    fn parse(stat: &[u8], status: &[u8]) -> Option<Self> {
        let Uids { real, effective } = parse_uids(status)?;
        Some(Self {
            stat: Stat::parse(stat)?,
            uid: effective,
            real_uid: real,
        })
    }
}

/// The processes of one moment; each may be gone since (see [`super::ProcessId::open`]).
#[derive(Clone, Debug, Default)]
pub struct ProcessTable(Vec<Entry>);

impl ProcessTable {
    /// Reads `stat` and `status` of every process, which cannot hang. `None`: a process is there and cannot be read.
    pub fn scan() -> Option<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let proc_fd = open("/proc", flags, Mode::empty()).ok()?;
        let listing = openat(&proc_fd, ".", flags, Mode::empty()).ok()?;
        let mut listing = nix::dir::Dir::from_fd(listing).ok()?;
        let is_pid = |name: &str| name.bytes().all(|b| b.is_ascii_digit());
        let read = |name: &str| {
            let stat = read_at(&proc_fd, &format!("{name}/stat"), 4096)?;
            Ok((stat, read_at(&proc_fd, &format!("{name}/status"), 65_536)?))
        };
        let mut entries = Vec::new();
        for entry in listing.iter() {
            let entry = entry.ok()?;
            let Some(name) = entry.file_name().to_str().ok().filter(|name| is_pid(name)) else {
                continue;
            };
            match read(name) {
                Ok((stat, status)) => entries.extend(Entry::parse(&stat, &status)),
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
        self.iter().filter(move |entry| entry.uid == uid)
    }

    pub fn children(&self, parent: i32) -> impl Iterator<Item = &Entry> {
        self.iter().filter(move |entry| entry.stat.parent == parent)
    }

    /// Children, their children and so on, parents first.
    pub fn descendants(&self, ancestor: i32) -> Vec<&Entry> {
        let mut found: Vec<&Entry> = self.children(ancestor).collect();
        let mut at = 0;
        while let Some(entry) = found.get(at) {
            let pid = entry.stat.id.pid;
            // A pid of the table can be its own ancestor if it was reused during the scan.
            let more: Vec<_> = self.children(pid).filter(|e| !found.contains(e)).collect();
            found.extend(more);
            at += 1;
        }
        found
    }
}
