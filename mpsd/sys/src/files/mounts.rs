//! A bounded file system for what a user may fill, and the end of file systems that users mount. A
//! removal does not free the space of a file that a user keeps open.

use super::{Dir, FileError};
use crate::deadline::Deadline;
use crate::descriptors::read_at;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;
use nix::sys::statvfs::statvfs;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

const MOST_OF_LIST: usize = 16 << 20;
const NONE: Option<&str> = None;
/// The lock of who makes a directory a private mount.
const PRIVATE: &str = ".private";
const FULL: &str = "find room in each mount namespace (fs.mount-max) for a mount over";

/// Whether root gets no mounts here at all, as in most containers. No ordinary user can cause it.
pub fn has_no_mounts(error: &FileError) -> bool {
    let none = [Errno::EPERM, Errno::ENOSYS, Errno::ENODEV];
    error.errno().is_some_and(|errno| none.contains(&errno))
}

#[derive(Clone, Copy, Debug)]
pub struct TmpfsSize {
    /// Bytes.
    pub bytes: u64,
    /// Files, links and directories.
    pub files: u64,
}

impl Dir {
    /// Opens `path` as a private mount of its own, until the next boot. A mount below it reaches no
    /// other namespace, so a user who has filled theirs (`fs.mount-max`) cannot make it fail.
    pub fn private(path: &Path, deadline: Deadline) -> Result<Self, FileError> {
        let dir = Self::open(path)?;
        if dir.make_private()? {
            return Ok(dir);
        }
        // A second mount over the first would hide what lies below that.
        let lock = dir.lock(PRIVATE, deadline)?;
        let made = dir.make_mount();
        dir.remove_file(PRIVATE)?;
        drop(lock);
        made?;
        Self::open(path)
    }

    fn make_mount(&self) -> Result<(), FileError> {
        if !Self::open(&self.path)?.make_private()? {
            let own = name_of(self);
            let mounted = mount(Some(&*own), &*own, NONE, MsFlags::MS_BIND, NONE);
            mounted.map_err(self.cannot_mount("make a mount of"))?;
            Self::open(&self.path)?.make_private()?;
        }
        Ok(())
    }

    /// False: it is not the top of a mount.
    fn make_private(&self) -> Result<bool, FileError> {
        match mount(NONE, &*name_of(self), NONE, MsFlags::MS_PRIVATE, NONE) {
            Ok(()) => Ok(true),
            Err(Errno::EINVAL) => Ok(false),
            Err(errno) => Err(FileError::io("make a private mount of", &self.path)(errno)),
        }
    }

    fn cannot_mount(&self, act: &'static str) -> impl FnOnce(Errno) -> FileError {
        move |errno| {
            let act = if errno == Errno::ENOSPC { FULL } else { act };
            FileError::io(act, &self.path)(errno)
        }
    }

    /// Covers this directory with a tmpfs of this owner and mode.
    pub fn cover(&self, room: TmpfsSize, mode: u32, owner: (u32, u32)) -> Result<(), FileError> {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        let (TmpfsSize { bytes, files }, (uid, gid)) = (room, owner);
        let options = format!("size={bytes},nr_inodes={files},mode={mode:o},uid={uid},gid={gid}");
        let target = name_of(self);
        let (from, kind) = (Some("mpsd"), Some("tmpfs"));
        let mounted = mount(from, &*target, kind, flags, Some(&*options));
        mounted.map_err(self.cannot_mount("mount a tmpfs over"))
    }

    /// Ends the FUSE file systems that users mounted below this directory, and so every wait for
    /// them, which not even SIGKILL may end. Root's mounts, and those behind another mount, stay.
    pub fn abort_users_mounts(&self) {
        for found in all().unwrap_or_default() {
            let Ok(path) = found.path.strip_prefix(&self.path) else {
                continue;
            };
            let is_fuse = found.kind == "fuse" || found.kind.starts_with("fuse.");
            if !is_fuse || found.has("user_id=0") {
                continue;
            }
            // If the descriptor holds another mount than the kernel listed, that one is left alone.
            let is_listed = |held: &OwnedFd| mount_of(held).is_ok_and(|id| id == found.id);
            if let Some(held) = self.walk(path).filter(is_listed) {
                let _ = umount2(&*name_of(&held), MntFlags::MNT_FORCE | MntFlags::MNT_DETACH);
            }
        }
    }

    fn walk(&self, path: &Path) -> Option<OwnedFd> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut held = self.fd.try_clone().ok()?;
        for name in path {
            held = openat(&held, name, flags, Mode::empty()).ok()?;
        }
        Some(held)
    }
}

/// Whether job `number` has a mount namespace without later mounts (Slurm's job_container/tmpfs).
pub fn has_namespace(number: &str) -> bool {
    let kept = |mount: &Mount| {
        let root = mount.root.as_os_str().as_encoded_bytes();
        mount.kind == "nsfs"
            && root.starts_with(b"mnt:[")
            && mount.path.iter().any(|name| name == number)
    };
    all().is_ok_and(|mounts| mounts.iter().any(kept))
}

/// A link to exactly what a descriptor holds.
pub(super) fn name_of(fd: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// The mount that a descriptor lies on (proc_pid_fdinfo(5)), also in a dead file system. Device
/// numbers show no bind mount.
pub(super) fn mount_of(fd: &impl AsFd) -> Result<u64, FileError> {
    let path = format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd());
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    line.and_then(|id| id.trim().parse().ok())
        .ok_or_else(|| FileError::unfit(path, "does not name a mount"))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Its number in this namespace; a later mount may get it again.
    pub id: u64,
    /// The part of its file system that it shows.
    pub root: PathBuf,
    pub path: PathBuf,
    pub kind: String,
    pub options: String,
}

impl Mount {
    pub fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|one| one == option)
    }
}

/// All, in the kernel's order: a mount follows the one below which it lies. ENOENT: no `/proc`.
pub(crate) fn all() -> Result<Vec<Mount>, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let own = open("/proc/self", flags, Mode::empty())?;
    Ok(parse(&read_at(own, "mountinfo", MOST_OF_LIST)?))
}

pub(crate) fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|b| *b == b'\n').filter_map(line).collect()
}

fn line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let word = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let (root, path) = (unescape(fields.nth(2)?), unescape(fields.next()?));
    let mut after = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, _source, options) = (after.next()?, after.next()?, after.next()?);
    Some(Mount {
        id,
        root,
        path,
        kind: word(kind),
        options: word(options),
    })
}

/// Undoes the kernel's octal escapes, as `\040` for a blank.
fn unescape(text: &[u8]) -> PathBuf {
    let mut plain = Vec::new();
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| *first == b'\\');
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        let byte = code.and_then(|code| u8::from_str_radix(code, 8).ok());
        plain.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(plain).into()
}

/// A start needs less room than this. Bytes, and files.
const ROOM: u64 = 1 << 20;
const FILES: u64 = 64;

/// What the file system of `path` lacks for a start, in words.
pub fn lacking(path: &Path) -> Option<String> {
    let there = path.ancestors().find(|path| path.exists())?;
    let about = statvfs(there).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(about.fragment_size());
    let (free, all) = (bytes(about.blocks_available()), bytes(about.blocks()));
    let (files, all_files) = (about.files_available(), about.files());
    // A file system without a number of files says 0 for it.
    let figures = if all_files > 0 && files < FILES {
        format!("{files} of {all_files} inodes")
    } else if free < ROOM {
        format!("{} of {} KiB", free >> 10, all >> 10)
    } else {
        return None;
    };
    let device = |path: &Path| path.metadata().map(|about| about.dev()).ok();
    let is_of_it = |above: &&Path| device(above) == device(there);
    let above = there.ancestors().take_while(is_of_it);
    let mount_point = above.last().unwrap_or(there).display();
    Some(format!("file system '{mount_point}' has {figures} free"))
}
