//! The cgroup hierarchies of this node.

use crate::sys::descriptors::write_at;
use crate::sys::files::{Dir, FileError};
use crate::sys::mountinfo;
use nix::errno::Errno;
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, fstatfs};
use std::path::{Path, PathBuf};

const MOST_HIERARCHIES: usize = 64;
const USUAL: [&str; 3] = [
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/unified",
    "/sys/fs/cgroup/systemd",
];

/// The hierarchies in which a job's cgroup can be, the better kind first: v2, and systemd's v1 hierarchy without controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Version {
    Unified,
    Named,
}

pub(super) fn usable() -> Result<Vec<PathBuf>, FileError> {
    match mountinfo::all() {
        Ok(mounts) => Ok(of(mounts)),
        Err(Errno::ENOENT) => Ok(Vec::new()),
        Err(errno) => Err(FileError::io("read", "/proc/self/mountinfo")(errno)),
    }
}

/// Of several mounts of one hierarchy, the one at a usual place.
fn of(all: Vec<mountinfo::Mount>) -> Vec<PathBuf> {
    let hierarchy = |mount: mountinfo::Mount| match mount.kind.as_str() {
        "cgroup2" => Some((Version::Unified, mount.path)),
        "cgroup" if mount.has("name=systemd") => Some((Version::Named, mount.path)),
        _ => None,
    };
    let mut mounts: Vec<_> = all.into_iter().filter_map(hierarchy).collect();
    let is_usual = |path: &Path| USUAL.iter().any(|usual| path.as_os_str() == *usual);
    mounts.sort_by_key(|(version, path)| (*version, !is_usual(path)));
    mounts.dedup_by_key(|(version, _)| *version);
    mounts.into_iter().map(|(_, path)| path).collect()
}

pub(super) fn is_cgroup(dir: &Dir) -> bool {
    is_unified(dir) || fstatfs(dir).is_ok_and(|found| found.filesystem_type() == CGROUP_SUPER_MAGIC)
}

pub(super) fn is_unified(dir: &Dir) -> bool {
    fstatfs(dir).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC)
}

/// Moves a process of ours that hangs to the root of each hierarchy. In the job's cgroup, where a user can make it stay, it
/// would drain the node (Slurm's "Kill task failed"). Each move waits for the kernel (10 ms on Linux 6.18).
pub fn leave(pid: i32) {
    let (top, text) = (Path::new("/sys/fs/cgroup"), pid.to_string());
    let Ok(dir) = Dir::open(top) else { return };
    if is_cgroup(&dir) {
        let _ = write_at(&dir, "cgroup.procs", &text);
        return;
    }
    // Version 1: each hierarchy is a directory in it.
    for name in dir.names(MOST_HIERARCHIES).unwrap_or_default() {
        let hierarchy = dir.open_dir(&name).ok().filter(is_cgroup);
        let _ = hierarchy.map(|hierarchy| write_at(&hierarchy, "cgroup.procs", &text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layouts_of_systems() {
        let unified = "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let hybrid = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n\
        42 31 0:38 / /mnt/again rw,relatime - cgroup2 cgroup2 rw\n";
        let v1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let odd = "29 22 0:26 / /mnt/a\\040b\\ rw - cgroup2 none rw\n";
        for (mountinfo, paths) in [
            (unified, &["/sys/fs/cgroup"][..]),
            (hybrid, &["/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"]),
            (v1, &[]),
            ("garbage\n\n1 2 3\n", &[]),
            (odd, &["/mnt/a b\\"]),
        ] {
            let found = of(mountinfo::parse(mountinfo.as_bytes()));
            assert_eq!(found, paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        }
    }
}
