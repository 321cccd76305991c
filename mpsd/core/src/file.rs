//! Files read, and replaced in one step: a reader finds the whole old file or the whole new one.

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat};
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot {act} '{path}': {errno}")]
    Io {
        act: &'static str,
        path: PathBuf,
        errno: Errno,
    },
    #[error("'{path}' {what}")]
    Unfit { path: PathBuf, what: String },
    /// A bound was reached: size, entries, time.
    #[error("'{path}' {what}")]
    Bound { path: PathBuf, what: String },
}

impl FileError {
    /// For `map_err`: `act` on `path` failed.
    pub fn io(act: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(Errno) -> Self {
        let path = path.into();
        move |errno| Self::Io { act, path, errno }
    }

    pub fn unfit(path: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        let (path, what) = (path.into(), what.into());
        Self::Unfit { path, what }
    }

    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Io { errno, .. } => Some(*errno),
            Self::Unfit { .. } | Self::Bound { .. } => None,
        }
    }

    pub fn is_absent(&self) -> bool {
        self.errno() == Some(Errno::ENOENT)
    }
}

pub fn file_type(status: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT
}

pub(crate) fn not_regular(path: &Path, status: &FileStat) -> FileError {
    FileError::unfit(path, format!("is {}, not a regular file", kind(status)))
}

pub fn kind(status: &FileStat) -> &'static str {
    match file_type(status) {
        SFlag::S_IFREG => "a regular file",
        SFlag::S_IFDIR => "a directory",
        SFlag::S_IFLNK => "a symbolic link",
        SFlag::S_IFIFO => "a FIFO",
        SFlag::S_IFSOCK => "a socket",
        _ => "a device",
    }
}

/// Reads a file that any user may own, as [`read_regular`]. A FIFO that stands there does not block.
pub fn read_any(path: &Path, max: usize) -> Result<Vec<u8>, FileError> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = open(path, flags, Mode::empty()).map_err(FileError::io("open", path))?;
    read_regular(&file, path, max)
}

/// Reads an open file that must be regular and of at most `max` bytes.
pub fn read_regular(file: &OwnedFd, path: &Path, max: usize) -> Result<Vec<u8>, FileError> {
    let status = fstat(file).map_err(FileError::io("look at", path))?;
    if file_type(&status) != SFlag::S_IFREG {
        return Err(not_regular(path, &status));
    }
    let mut bytes = Vec::new();
    let mut some = [0u8; 8192];
    loop {
        match nix::unistd::read(file, &mut some) {
            Ok(0) => return Ok(bytes),
            Ok(got) => bytes.extend_from_slice(some.get(..got).unwrap_or_default()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(FileError::io("read", path)(errno)),
        }
        if bytes.len() > max {
            let (path, what) = (path.into(), format!("has more than {max} bytes"));
            return Err(FileError::Bound { path, what });
        }
    }
}

/// What the new file must outlive when the call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The process: the file has its name, and a crash of the node may lose it.
    Placed,
    OnDisk,
}

/// Replaces or makes `path`, or leaves the old file. Follows links to its directory, which only
/// root may write.
pub fn replace(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    durability: Durability,
) -> Result<(), FileError> {
    let fail = |errno| FileError::io("write", path)(errno);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(fail(Errno::EISDIR));
    };
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let parent = open(parent, flags, Mode::empty()).map_err(fail)?;
    replace_at(&parent, name, bytes, mode, durability).map_err(fail)
}

/// Replaces or makes the entry `name` without following a link. The new file is `.NAME.new` until
/// it is whole; a crash leaves it to the next call. Two writers of the same name must hold a lock.
pub fn replace_at(
    directory: impl AsFd,
    name: &OsStr,
    bytes: &[u8],
    mode: u32,
    durability: Durability,
) -> Result<(), Errno> {
    let directory = directory.as_fd();
    let hidden = OsString::from_iter([OsStr::new("."), name, OsStr::new(".new")]);
    let remove = || unlinkat(directory, hidden.as_os_str(), UnlinkatFlags::NoRemoveDir);
    match remove() {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(errno),
    }
    let flags =
        OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let private = Mode::S_IRUSR | Mode::S_IWUSR;
    let mut file = File::from(openat(directory, hidden.as_os_str(), flags, private)?);
    let errno = |error: io::Error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
    let on_disk = durability == Durability::OnDisk;
    let placed = file
        .write_all(bytes)
        .map_err(errno)
        .and_then(|()| fchmod(&file, Mode::from_bits_truncate(mode)))
        .and_then(|()| if on_disk { fsync(&file) } else { Ok(()) })
        .and_then(|()| renameat(directory, hidden.as_os_str(), directory, name));
    if placed.is_err() {
        // What did not fit on a full disk must not stay there.
        let _ = remove();
        return placed;
    }
    if on_disk {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        return fsync(openat(directory, ".", flags, Mode::empty())?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_made_and_replaced_with_its_mode() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("slurm.conf");
        for (text, mode, durability) in [
            ("old", 0o600, Durability::Placed),
            ("new", 0o644, Durability::OnDisk),
        ] {
            replace(&path, text.as_bytes(), mode, durability).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            let found = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(found & 0o7777, mode);
        }
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failure_leaves_the_old_file_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("directory");
        std::fs::create_dir(&path).unwrap();
        let error = replace(&path, b"x", 0o644, Durability::Placed).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::EISDIR));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
        let nowhere = place.path().join("none/file");
        let nowhere = replace(&nowhere, b"x", 0o644, Durability::Placed).unwrap_err();
        assert!(nowhere.is_absent(), "{nowhere}");
        assert!(replace(Path::new("/"), b"x", 0o644, Durability::Placed).is_err());
    }
}
