//! Files replaced in one step.

use super::{Dir, FileError};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;

impl Dir {
    /// Replaces (or makes) a file in one step: after a crash there is the old file or the new, whole. The new one
    /// stands under `.NAME.new` until it is complete and on disk; one left there by a crash is replaced. Two
    /// writers of one name must hold a lock.
    pub fn write_atomic(&self, name: impl AsRef<OsStr>, bytes: &[u8], mode: u32) -> Result<(), FileError> {
        self.replace(name.as_ref(), bytes, mode, true)
    }

    /// The same for what need not outlive the node's own end: in one step, and not waited for until it is on disk.
    pub fn write_whole(&self, name: impl AsRef<OsStr>, bytes: &[u8], mode: u32) -> Result<(), FileError> {
        self.replace(name.as_ref(), bytes, mode, false)
    }

    fn replace(&self, name: &OsStr, bytes: &[u8], mode: u32, on_disk: bool) -> Result<(), FileError> {
        let (goal, path) = self.entry(name)?;
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(".new");
        let (hidden, _) = self.entry(&hidden)?;
        let fail = |act| FileError::io(act, &path);
        match unlinkat(&self.fd, hidden.as_c_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(fail("replace a leftover of")(errno)),
        }
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(
            &self.fd,
            hidden.as_c_str(),
            flags,
            Mode::from_bits_truncate(0o600),
        )
        .map_err(fail("write"))?;
        let written = write_all(&file, bytes)
            .and_then(|()| fchmod(&file, Mode::from_bits_truncate(mode)))
            .and_then(|()| if on_disk { fsync(&file) } else { Ok(()) })
            .and_then(|()| renameat(&self.fd, hidden.as_c_str(), &self.fd, goal.as_c_str()));
        if let Err(errno) = written {
            // A full disk must not be made fuller by what did not fit.
            let _ = unlinkat(&self.fd, hidden.as_c_str(), UnlinkatFlags::NoRemoveDir);
            return Err(fail("write")(errno));
        }
        match on_disk {
            true => fsync(self.listing()?).map_err(fail("write to disk")),
            false => Ok(()),
        }
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match nix::unistd::write(file, bytes) {
            Ok(0) => return Err(Errno::EIO),
            Ok(put) => bytes = bytes.get(put..).unwrap_or_default(),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
