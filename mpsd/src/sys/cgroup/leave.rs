//! Out of the cgroups of whoever started us.

use super::mounts::is_cgroup;
use crate::sys::descriptors::write_at;
use crate::sys::files::Dir;
use std::path::Path;

/// More than a kernel has controllers.
const MOST_HIERARCHIES: usize = 64;

/// Takes a process of ours that hangs to the root of each hierarchy, as far as we may: a scheduler that finds it in the job's
/// cgroup, where it stays for as long as a user likes, takes the node out of service (Slurm's "Kill task failed"). Each move waits
/// for the kernel (10 ms on Linux 6.18): for a process that will end by itself it is not worth it.
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
