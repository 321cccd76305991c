//! Where the cgroup hierarchies are mounted.

use crate::sys::descriptors::read_at;
use crate::sys::files::{Dir, FileError};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, fstatfs};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The two kinds of hierarchy that serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    /// v2.
    Unified,
    /// systemd's v1 hierarchy without controllers.
    Named,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub path: PathBuf,
    pub version: Version,
}

/// The hierarchies of this node, the better one first.
pub(super) fn usable() -> Result<Vec<Mount>, FileError> {
    const CAP: usize = 16 << 20;
    let path = "/proc/self";
    let text = open(
        path,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )
    .and_then(|own| read_at(own, "mountinfo", CAP));
    match text {
        Ok(text) => Ok(parse(&text)),
        Err(Errno::ENOENT) => Ok(Vec::new()),
        Err(errno) => Err(FileError::io("read", "/proc/self/mountinfo")(errno)),
    }
}

/// Reads proc_pid_mountinfo(5). Of several mounts of one hierarchy the one at a usual place is taken.
fn parse(text: &[u8]) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = text.split(|b| *b == b'\n').filter_map(line).collect();
    let usual = |mount: &Mount| {
        [
            "/sys/fs/cgroup",
            "/sys/fs/cgroup/unified",
            "/sys/fs/cgroup/systemd",
        ]
        .iter()
        .any(|place| mount.path.as_os_str() == *place)
    };
    mounts.sort_by_key(|mount| (mount.version, !usual(mount)));
    mounts.dedup_by_key(|mount| mount.version);
    mounts
}

fn line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let path = unescape(fields.nth(4)?);
    let mut after = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, _source, options) = (after.next()?, after.next()?, after.next()?);
    let version = match kind {
        b"cgroup2" => Version::Unified,
        b"cgroup"
            if options
                .split(|b| *b == b',')
                .any(|option| option == b"name=systemd") =>
        {
            Version::Named
        }
        _ => return None,
    };
    Some(Mount { path, version })
}

/// Undoes the kernel's `\040` for a blank and the like.
fn unescape(text: &[u8]) -> PathBuf {
    let mut plain = Vec::new();
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let code = after
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(plain).into()
}

/// Whether a directory lies in a cgroup hierarchy, by its file system.
pub(super) fn is_cgroup(dir: &Dir) -> bool {
    is_unified(dir) || fstatfs(dir).is_ok_and(|found| found.filesystem_type() == CGROUP_SUPER_MAGIC)
}

/// Whether that hierarchy is of version 2.
pub(super) fn is_unified(dir: &Dir) -> bool {
    fstatfs(dir).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC)
}

#[cfg(test)]
mod tests;
