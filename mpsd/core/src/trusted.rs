//! Files that only root can have put in their place: programs to run, libraries to load,
//! configuration to obey.

use crate::file::{FileError, file_type, kind, not_regular, read_regular};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

/// A regular file, open for reading, that only root can have put in its place.
#[derive(Debug)]
pub struct TrustedFile {
    pub file: OwnedFd,
    /// Its path without symbolic links.
    pub path: PathBuf,
    /// Device: with the inode, what `/proc/PID/exe` of a process that runs it shows.
    pub device: u64,
    pub inode: u64,
}

impl TrustedFile {
    pub fn read(&self, max: usize) -> Result<Vec<u8>, FileError> {
        read_regular(&self.file, &self.path, max)
    }
}

const MAX_LINKS: usize = 40;
const DIRECTORY: OFlag = OFlag::O_PATH
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_CLOEXEC);

/// Follows links of root (`libnvidia-ml.so.1` is one). A directory that all may write needs the
/// sticky bit, as `/tmp` has: it keeps root's entries root's.
pub fn open_trusted(path: &Path) -> Result<TrustedFile, FileError> {
    if !path.is_absolute() {
        return Err(FileError::unfit(path, "is not an absolute path"));
    }
    let mut todo = pending(path);
    let root = open("/", DIRECTORY, Mode::empty()).map_err(FileError::io("open", "/"))?;
    check(&root, Path::new("/"))?;
    let mut way = vec![root];
    let mut here = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = todo.pop() {
        let Some(parent) = way.last() else {
            return Err(FileError::unfit(path, "leads above '/'"));
        };
        if part == ".." {
            if way.len() > 1 {
                way.pop();
                here.pop();
            }
            continue;
        }
        let name = here.join(&part);
        let status = fstatat(parent, part.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(FileError::io("open", &name))?;
        match file_type(&status) {
            SFlag::S_IFLNK => {
                links += 1;
                if links > MAX_LINKS {
                    let what = "leads through too many symbolic links";
                    return Err(FileError::unfit(path, what));
                }
                if status.st_uid != 0 {
                    return Err(not_roots(&name, &status));
                }
                let goal =
                    readlinkat(parent, part.as_os_str()).map_err(FileError::io("follow", &name))?;
                let goal = PathBuf::from(goal);
                if goal.is_absolute() {
                    way.truncate(1);
                    here = PathBuf::from("/");
                }
                todo.extend(pending(&goal));
            }
            SFlag::S_IFDIR => {
                let flags = DIRECTORY | OFlag::O_NOFOLLOW;
                let fd = openat(parent, part.as_os_str(), flags, Mode::empty());
                let fd = fd.map_err(FileError::io("open", &name))?;
                check(&fd, &name)?;
                way.push(fd);
                here = name;
            }
            SFlag::S_IFREG if todo.is_empty() => return open_last(parent, &part, name),
            _ if todo.is_empty() => return Err(not_regular(&name, &status)),
            _ => {
                let what = format!("is {}, not a directory", kind(&status));
                return Err(FileError::unfit(&name, what));
            }
        }
    }
    let what = "is a directory, not a regular file";
    Err(FileError::unfit(&here, what))
}

/// Checks a directory as [`open_trusted`] does for a file in it. One that is not there is no error.
pub fn check_directory(path: &Path) -> Result<(), FileError> {
    const NONE: &str = ".mpsd-nothing";
    match open_trusted(&path.join(NONE)) {
        Err(error) if error.is_absent() => Ok(()),
        other => other.map(drop),
    }
}

fn pending(path: &Path) -> Vec<OsString> {
    let part = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        _ => None,
    };
    let mut parts: Vec<_> = path.components().filter_map(part).collect();
    parts.reverse();
    parts
}

fn open_last(parent: &OwnedFd, part: &OsString, path: PathBuf) -> Result<TrustedFile, FileError> {
    let always = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let open = |flags| openat(parent, part.as_os_str(), flags | always, Mode::empty());
    // With O_NONBLOCK a FIFO that now stands there does not block. Its kind is refused below.
    let file = match open(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY) {
        // A program may be executable but not readable. Its owner decides.
        Err(Errno::EACCES) => open(OFlag::O_PATH),
        other => other,
    };
    let file = file.map_err(FileError::io("open", &path))?;
    let status = check(&file, &path)?;
    if file_type(&status) != SFlag::S_IFREG {
        return Err(not_regular(&path, &status));
    }
    Ok(TrustedFile {
        file,
        path,
        device: status.st_dev,
        inode: status.st_ino,
    })
}

fn check(fd: &OwnedFd, path: &Path) -> Result<FileStat, FileError> {
    let status = fstat(fd).map_err(FileError::io("look at", path))?;
    let mode = Mode::from_bits_truncate(status.st_mode);
    let is_dir = file_type(&status) == SFlag::S_IFDIR;
    if status.st_uid != 0 {
        return Err(not_roots(path, &status));
    }
    let open_to_others = mode.intersects(Mode::S_IWGRP | Mode::S_IWOTH);
    if open_to_others && !(is_dir && mode.contains(Mode::S_ISVTX)) {
        let mode = status.st_mode & 0o7777;
        let what = format!("may be written by group or others (mode {mode:04o}): chmod go-w");
        return Err(FileError::unfit(path, what));
    }
    Ok(status)
}

fn not_roots(path: &Path, status: &FileStat) -> FileError {
    let what = format!("belongs to user {}, not to root: chown root", status.st_uid);
    FileError::unfit(path, what)
}

#[cfg(test)]
#[path = "trusted_tests.rs"]
mod tests;
