//! Opening and reading files, and why that failed.

use nix::errno::Errno;
use nix::sys::stat::{FileStat, SFlag, fstat};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Why a file or directory could not be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The kernel said no.
    #[error("cannot {act} '{path}': {errno}")]
    Io {
        /// "open", "create" …
        act: &'static str,
        /// The object.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// It has the wrong kind or the wrong owner.
    #[error("'{path}' {what}")]
    Unfit {
        /// The object.
        path: PathBuf,
        /// "is not a regular file", "belongs to user 1001, not to 0" …
        what: String,
    },
    /// A bound was reached: size, entries, time.
    #[error("'{path}' {what}")]
    Bound {
        /// The object.
        path: PathBuf,
        /// Which bound.
        what: String,
    },
}

impl FileError {
    /// For `map_err`: `act` on `path` failed.
    pub fn io(act: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(Errno) -> Self {
        let path = path.into();
        move |errno| Self::Io { act, path, errno }
    }

    /// `path` has the wrong kind or owner, as `what` says.
    pub fn unfit(path: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        let (path, what) = (path.into(), what.into());
        Self::Unfit { path, what }
    }

    /// The kernel's error, if there is one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Io { errno, .. } => Some(*errno),
            Self::Unfit { .. } | Self::Bound { .. } => None,
        }
    }

    /// Whether the object does not exist.
    pub fn is_absent(&self) -> bool {
        self.errno() == Some(Errno::ENOENT)
    }
}

/// "a directory", "a FIFO" …
pub fn kind(status: &FileStat) -> &'static str {
    match SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => "a regular file",
        SFlag::S_IFDIR => "a directory",
        SFlag::S_IFLNK => "a symbolic link",
        SFlag::S_IFIFO => "a FIFO",
        SFlag::S_IFSOCK => "a socket",
        _ => "a device",
    }
}

/// Reads an open file that must be regular and of at most `max` bytes.
pub fn read_regular(file: &OwnedFd, path: &Path, max: usize) -> Result<Vec<u8>, FileError> {
    let status = fstat(file).map_err(FileError::io("look at", path))?;
    if SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT != SFlag::S_IFREG {
        let what = format!("is {}, not a regular file", kind(&status));
        return Err(FileError::unfit(path, what));
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
            return Err(FileError::Bound {
                path: path.into(),
                what: format!("has more than {max} bytes"),
            });
        }
    }
}
