//! Where the cgroup hierarchies are mounted.

use crate::sys::files::{Dir, FileError};
use crate::sys::mountinfo;
use nix::errno::Errno;
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, fstatfs};
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
    match mountinfo::all() {
        Ok(mounts) => Ok(of(mounts)),
        Err(Errno::ENOENT) => Ok(Vec::new()),
        Err(errno) => Err(FileError::io("read", "/proc/self/mountinfo")(errno)),
    }
}

/// Of several mounts of one hierarchy the one at a usual place is taken.
fn of(all: Vec<mountinfo::Mount>) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = all.into_iter().filter_map(hierarchy).collect();
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

fn hierarchy(mount: mountinfo::Mount) -> Option<Mount> {
    let version = match mount.kind.as_str() {
        "cgroup2" => Version::Unified,
        "cgroup" if mount.has("name=systemd") => Version::Named,
        _ => return None,
    };
    let path = mount.path;
    Some(Mount { path, version })
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
