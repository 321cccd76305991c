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
mod tests {
    use super::*;

    fn parse(text: &[u8]) -> Vec<Mount> {
        of(mountinfo::parse(text))
    }

    #[test]
    fn the_three_layouts_of_the_world() {
        let unified = b"29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(
            parse(unified),
            [Mount {
                path: "/sys/fs/cgroup".into(),
                version: Version::Unified
            }]
        );
        let hybrid = b"31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n\
        42 31 0:38 / /mnt/again rw,relatime - cgroup2 cgroup2 rw\n";
        let found: Vec<_> = parse(hybrid).into_iter().map(|mount| mount.path).collect();
        assert_eq!(
            found,
            [
                PathBuf::from("/sys/fs/cgroup/unified"),
                "/sys/fs/cgroup/systemd".into()
            ]
        );
        let v1 = b"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(parse(v1), []);
        assert_eq!(parse(b"garbage\n\n1 2 3\n"), []);
        let odd = b"29 22 0:26 / /mnt/a\\040b\\ rw - cgroup2 none rw\n";
        assert_eq!(parse(odd)[0].path, PathBuf::from("/mnt/a b\\"));
    }
}
