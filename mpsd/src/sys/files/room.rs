//! A file system of its own for what a user may fill, and the end of those that users mount.
//!
//! A user can keep a file without a name for as long as a process of theirs lives, so no removal gives its room back. A bound does: what
//! is kept is kept of the job's own file system, which has no name either by then.

use super::{Dir, FileError};
use crate::sys::mountinfo::{self, Mount};
use nix::fcntl::{OFlag, openat};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// What a directory may hold.
#[derive(Clone, Copy, Debug)]
pub struct TmpfsSize {
    /// Bytes.
    pub bytes: u64,
    /// Files, links and directories.
    pub files: u64,
}

impl Dir {
    /// Covers this directory with a tmpfs of its own, which belongs to `owner` and has this mode. By the descriptor, and so by no
    /// name that another could change.
    ///
    /// # Errors
    /// The kernel's: EPERM where this program may not mount, as in most containers.
    pub fn cover(&self, room: TmpfsSize, mode: u32, owner: (u32, u32)) -> Result<(), FileError> {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        let (TmpfsSize { bytes, files }, (uid, gid)) = (room, owner);
        let options = format!("size={bytes},nr_inodes={files},mode={mode:o},uid={uid},gid={gid}");
        let target = name_of(self);
        mount(
            Some("mpsd"),
            target.as_str(),
            Some("tmpfs"),
            flags,
            Some(options.as_str()),
        )
        .map_err(FileError::io("mount a tmpfs over", &self.path))
    }

    /// Ends the FUSE file systems that users mounted below this directory: whoever waits for one gets an error. Its server may be a
    /// thread of the process that waits, and then not even SIGKILL ends that wait.
    ///
    /// Root's own are left alone. So is one inside another one, which is reached only through it.
    pub fn abort_users_mounts(&self) {
        let below =
            |mount: &&Mount| mount.path.starts_with(&self.path) && is_fuse(mount) && !mount.has("user_id=0");
        for found in mountinfo::all().unwrap_or_default().iter().filter(below) {
            let Some(held) = found
                .path
                .strip_prefix(&self.path)
                .ok()
                .and_then(|path| self.walk(path))
            else {
                continue;
            };
            // Held by the descriptor: it is the one that the kernel listed, or another one and left alone.
            if mount_of(&held).is_ok_and(|id| id == found.id) {
                let _ = umount2(
                    name_of(&held).as_str(),
                    MntFlags::MNT_FORCE | MntFlags::MNT_DETACH,
                );
            }
        }
    }

    /// Opens what lies at `path` below this directory. No link is followed.
    fn walk(&self, path: &Path) -> Option<OwnedFd> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut held = self.fd.try_clone().ok()?;
        for name in path {
            held = openat(&held, name, flags, Mode::empty()).ok()?;
        }
        Some(held)
    }
}

/// Whether a namespace of mounts is kept for job `number`, as Slurm's job_container/tmpfs does: what is mounted from then on is not seen
/// in it.
pub fn has_namespace(number: &str) -> bool {
    let kept = |mount: &Mount| {
        let root = mount.root.as_os_str().as_encoded_bytes();
        mount.kind == "nsfs" && root.starts_with(b"mnt:[") && mount.path.iter().any(|name| name == number)
    };
    mountinfo::all().is_ok_and(|mounts| mounts.iter().any(kept))
}

fn is_fuse(mount: &Mount) -> bool {
    mount.kind == "fuse" || mount.kind.starts_with("fuse.")
}

/// The name of what a descriptor holds. The link is followed to that very thing; nothing behind it can be a link.
pub(super) fn name_of(fd: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// The mount that a descriptor lies on (proc_pid_fdinfo(5)); asks only the kernel, never the file system, so that
/// a dead one cannot hang us. Device numbers would not tell a bind mount.
pub(super) fn mount_of(fd: &impl AsFd) -> Result<u64, FileError> {
    let path = format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd());
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    line.and_then(|id| id.trim().parse().ok())
        .ok_or_else(|| FileError::unfit(path, "does not name a mount"))
}
