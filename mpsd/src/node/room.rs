//! Room in a file system: pages and inodes, either of which any user of it can use up.

use super::log;
use super::real::RealNode;
use crate::job::node::Severity;
use crate::sys::files::{Dir, FileError, Room, has_namespace};
use mpsd_core::JobId;
use nix::sched::{CloneFlags, setns};
use nix::sys::statvfs::statvfs;
use nix::unistd::{chroot, fchdir};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A start needs less room than this. Bytes.
const ROOM: u64 = 1 << 20;
/// And fewer files.
const FILES: u64 = 64;

/// What a directory of bounded room covers: nobody enters it who does not see the cover.
const POINT: u32 = 0o700;

/// Makes directory `name` in `dir`, where a user of `job` has files: with so much room, this mode and this owner.
///
/// What a user keeps open outlives every removal. So it lies in a file system of its own, which goes with the directory.
pub fn bounded(
    node: &RealNode,
    dir: &Dir,
    job: &JobId,
    name: &str,
    (room, mode, owner): (Room, u32, (u32, u32)),
) -> Result<(), FileError> {
    // Tasks that do not see it would find no daemon, and run outside of MPS (docs/facts/slurm.md#processes-that-a-callback-starts).
    if !has_namespace(job.whole().as_str()) {
        let (point, _) = dir.create_dir(name, POINT, (0, 0))?;
        let Err(error) = point.cover(room, mode, owner) else {
            return Ok(());
        };
        let line = format!("job {job}: '{name}' has no bound of room: {error}");
        log::line(node.program, Severity::Info, &line);
        dir.remove_empty_dir(name)?;
    }
    dir.create_dir(name, mode, owner).map(drop)
}

/// Moves this process into the mount namespace and the root of the first process, where `path` is the same directory there.
///
/// A unit's namespace may hold hidden copies of the mounts on the directories of jobs. No path leads to them, and the kernel keeps
/// such a directory busy for whoever is in that namespace. A scheduler in a container has another `path`, and stays where it is.
///
/// # Errors
/// The namespace was entered and its root was not: this process must do nothing more.
pub fn enter_first_namespace(path: &Path) -> Result<(), String> {
    const ROOT: &str = "/proc/1/root";
    let identity = |path: &Path| path.metadata().ok().map(|about| (about.dev(), about.ino()));
    let namespaces = ["/proc/self/ns/mnt", "/proc/1/ns/mnt"].map(|path| identity(Path::new(path)));
    let there = Path::new(ROOT).join(path.strip_prefix("/").unwrap_or(path));
    let is_same = identity(path).is_some() && identity(path) == identity(&there);
    let (Ok(root), Ok(first)) = (File::open(ROOT), File::open("/proc/1/ns/mnt")) else {
        return Ok(());
    };
    if !is_same || namespaces[0] == namespaces[1] || setns(&first, CloneFlags::CLONE_NEWNS).is_err() {
        return Ok(());
    }
    let entered = fchdir(&root).and_then(|()| chroot("."));
    entered.map_err(|errno| format!("cannot enter '{ROOT}': {}", errno.desc()))
}

/// What the file system of `path`, which need not be there yet, has too little of for a start: its mount point and figures in
/// words. `None`: it has room, or does not say.
pub fn lacking(path: &Path) -> Option<String> {
    let there = path.ancestors().find(|path| path.exists())?;
    let about = statvfs(there).ok()?;
    let free = about.blocks_available().saturating_mul(about.fragment_size());
    let (files, all_files) = (about.files_available(), about.files());
    let figures = match () {
        // A file system without a number of files says 0 for it.
        () if all_files > 0 && files < FILES => format!("{files} of {all_files} inodes"),
        () if free < ROOM => {
            let all = about.blocks().saturating_mul(about.fragment_size());
            format!("{} of {} KiB", free >> 10, all >> 10)
        }
        () => return None,
    };
    Some(format!(
        "file system '{}' has {figures} free",
        mount_point(there).display()
    ))
}

fn mount_point(path: &Path) -> &Path {
    let device = |path: &Path| path.metadata().map(|about| about.dev()).ok();
    let own = device(path);
    let of_it = path.ancestors().take_while(|above| device(above) == own);
    of_it.last().unwrap_or(path)
}
