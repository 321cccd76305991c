//! Files reached by descriptor, component by component, without following a symbolic link: so root
//! may work in places that a user can change.

use super::raw::of_rustix;
pub use mpsd_core::file::FileError;
use mpsd_core::file::{Durability, kind, read_regular, replace_at};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat, fstatat, mkdirat};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, unlinkat};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

mod lock;
pub(super) mod mounts;
mod remove;
pub use lock::LOCK;
pub use mounts::{TmpfsSize, has_namespace, has_no_mounts, lacking};
pub use remove::Bounds;

/// An open directory, held by descriptor and not by name; it need not be listable.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

const LIST: OFlag = OFlag::O_DIRECTORY
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);
const HOLD: OFlag = LIST.union(OFlag::O_PATH);
/// Opens a file in a place that a user can change: through no link, and without waiting for a FIFO.
const FILE: OFlag = OFlag::O_NOFOLLOW
    .union(OFlag::O_NONBLOCK)
    .union(OFlag::O_CLOEXEC);

impl Dir {
    /// Opens an absolute path; refuses a symbolic link on the way.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let fd = open("/", HOLD, Mode::empty()).map_err(FileError::io("open", "/"))?;
        let mut dir = Self::from_parts(fd, PathBuf::from("/"));
        if !path.is_absolute() {
            return Err(FileError::unfit(path, "is not an absolute path"));
        }
        for component in path.components() {
            match component {
                Component::RootDir | Component::CurDir => {}
                Component::Normal(name) => dir = dir.open_dir(name)?,
                Component::ParentDir | Component::Prefix(_) => {
                    return Err(FileError::unfit(path, "contains '..'"));
                }
            }
        }
        Ok(dir)
    }

    pub fn find(path: &Path) -> Result<Option<Self>, FileError> {
        match Self::open(path) {
            Err(error) if error.is_absent() => Ok(None),
            found => found.map(Some),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn status(&self) -> Result<FileStat, FileError> {
        fstat(&self.fd).map_err(FileError::io("look at", &self.path))
    }

    /// Whether only root may list it. A process that lists a directory can keep its lock.
    pub fn is_closed(&self) -> bool {
        let about = self.status();
        about.is_ok_and(|about| about.st_uid == 0 && about.st_mode & 0o044 == 0)
    }

    /// Owner, mode, kind of one entry, not of a link's target; `None`: there is none.
    pub fn status_of(&self, name: impl AsRef<OsStr>) -> Result<Option<FileStat>, FileError> {
        let (name, path) = self.entry(&name)?;
        match fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(status) => Ok(Some(status)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(FileError::io("look at", path)(errno)),
        }
    }

    pub fn open_dir(&self, name: impl AsRef<OsStr>) -> Result<Self, FileError> {
        let (name, path) = self.entry(&name)?;
        match openat(&self.fd, name, HOLD, Mode::empty()) {
            Ok(fd) => Ok(Self { fd, path }),
            Err(Errno::ENOTDIR | Errno::ELOOP) => Err(self.unfit(name, path)),
            Err(errno) => Err(FileError::io("open", path)(errno)),
        }
    }

    /// Opens or makes a directory with this owner and mode. Refuses one of another owner. The flag
    /// tells whether it is new.
    pub fn create_dir(
        &self,
        name: impl AsRef<OsStr>,
        mode: u32,
        owner: (u32, u32),
    ) -> Result<(Self, bool), FileError> {
        let (name, path) = self.entry(&name)?;
        // Making one takes the lock of this directory, which any user who may list it can keep.
        let made = match self.status_of(name)? {
            Some(_) => false,
            None => match mkdirat(&self.fd, name, Mode::from_bits_truncate(0o700)) {
                Ok(()) => true,
                Err(Errno::EEXIST) => false,
                Err(errno) => return Err(FileError::io("create", path)(errno)),
            },
        };
        let dir = self.open_dir(name)?;
        let status = dir.status()?;
        let expected = match made {
            true => nix::unistd::geteuid().as_raw(),
            false => owner.0,
        };
        if status.st_uid != expected {
            let what = format!("belongs to user {}, not to {expected}", status.st_uid);
            return Err(FileError::unfit(path, what));
        }
        let listing = dir.listing()?;
        if made && status.st_uid != owner.0 || status.st_gid != owner.1 {
            let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
            fchown(&listing, Some(uid), Some(gid)).map_err(FileError::io("give away", &path))?;
        }
        // Changing the mode takes the directory's lock. A change of owner may have removed bits.
        if dir.status()?.st_mode & 0o7777 != mode {
            let set = fchmod(&listing, Mode::from_bits_truncate(mode));
            set.map_err(FileError::io("set the mode of", &path))?;
        }
        Ok((dir, made))
    }

    /// Whether it lies in memory, where a reader of a file holds no lock on it.
    pub fn is_tmpfs(&self) -> bool {
        fstatfs(&self.fd).is_ok_and(|about| about.filesystem_type() == TMPFS_MAGIC)
    }

    /// Lets only root and user `uid` pass through this directory, by a POSIX ACL. Fails on a file
    /// system without ACLs.
    pub fn let_pass(&self, uid: u32) -> Result<(), FileError> {
        const NO_ID: u32 = u32::MAX;
        // linux/posix_acl_xattr.h: version, and entries of tag, permissions, id, by tag.
        let entries: [(u16, u16, u32); 5] = [
            (0x01, 0o7, NO_ID), // the owner
            (0x02, 0o1, uid),
            (0x04, 0o0, NO_ID), // the group
            (0x10, 0o1, NO_ID), // the most for all but owner and others
            (0x20, 0o0, NO_ID), // others
        ];
        let mut acl = 2_u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            acl.extend(tag.to_le_bytes());
            acl.extend(permissions.to_le_bytes());
            acl.extend(id.to_le_bytes());
        }
        let flags = rustix::fs::XattrFlags::empty();
        let set = rustix::fs::fsetxattr(self.listing()?, "system.posix_acl_access", &acl, flags);
        set.map_err(|e| FileError::io("set the ACL of", &self.path)(of_rustix(e)))
    }

    pub fn names(&self, max: usize) -> Result<Vec<OsString>, FileError> {
        let names = self.batch(max.saturating_add(1))?;
        if names.len() > max {
            let what = format!("has more than {max} entries");
            let path = self.path.clone();
            return Err(FileError::Bound { path, what });
        }
        Ok(names)
    }

    fn batch(&self, most: usize) -> Result<Vec<OsString>, FileError> {
        let fail = || FileError::io("list", &self.path);
        let mut listing = nix::dir::Dir::from_fd(self.listing()?).map_err(fail())?;
        let mut names = Vec::new();
        // Two more for `.` and `..`.
        for entry in listing.iter().take(most.saturating_add(2)) {
            let entry = entry.map_err(fail())?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// A small regular file, read without waiting; `None`: there is none. Refuses every other kind,
    /// and more than `max` bytes.
    pub fn read_limited(
        &self,
        name: impl AsRef<OsStr>,
        max: usize,
    ) -> Result<Option<Vec<u8>>, FileError> {
        let (name, path) = self.entry(&name)?;
        let flags = FILE | OFlag::O_RDONLY | OFlag::O_NOCTTY;
        let file = match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::ENOENT) => return Ok(None),
            Err(Errno::ELOOP | Errno::ENXIO) => return Err(self.unfit(name, path)),
            Err(errno) => return Err(FileError::io("read", path)(errno)),
        };
        read_regular(&file, &path, max).map(Some)
    }

    /// Replaces or makes a file in one step. Two writers of one name need a lock.
    pub fn write(
        &self,
        name: impl AsRef<OsStr>,
        bytes: &[u8],
        mode: u32,
        until: Durability,
    ) -> Result<(), FileError> {
        let (name, path) = self.entry(&name)?;
        replace_at(self, name, bytes, mode, until).map_err(FileError::io("write", path))
    }

    pub fn create_file(&self, name: impl AsRef<OsStr>, mode: u32) -> Result<OwnedFd, FileError> {
        let (name, path) = self.entry(&name)?;
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(&self.fd, name, flags, Mode::from_bits_truncate(mode));
        file.map_err(FileError::io("create", path))
    }

    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> Result<bool, FileError> {
        self.unlink(name.as_ref(), UnlinkatFlags::NoRemoveDir)
    }

    pub fn remove_empty_dir(&self, name: impl AsRef<OsStr>) -> Result<bool, FileError> {
        self.unlink(name.as_ref(), UnlinkatFlags::RemoveDir)
    }

    fn unlink(&self, name: &OsStr, what: UnlinkatFlags) -> Result<bool, FileError> {
        let (name, path) = self.entry(&name)?;
        match unlinkat(&self.fd, name, what) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(FileError::io("remove", path)(errno)),
        }
    }

    /// A descriptor of this directory that can be listed, synced and changed.
    pub(super) fn listing(&self) -> Result<OwnedFd, FileError> {
        let opened = openat(&self.fd, ".", LIST | OFlag::O_RDONLY, Mode::empty());
        opened.map_err(FileError::io("open", &self.path))
    }

    /// One component: neither empty, nor `.` or `..`, nor with a slash or NUL in it.
    pub(super) fn entry<'n>(
        &self,
        name: &'n impl AsRef<OsStr>,
    ) -> Result<(&'n OsStr, PathBuf), FileError> {
        let name = name.as_ref();
        let path = self.path.join(name);
        let bytes = name.as_bytes();
        if matches!(bytes, b"" | b"." | b"..") || bytes.contains(&b'/') || bytes.contains(&0) {
            return Err(FileError::unfit(path, "is not the name of an entry"));
        }
        Ok((name, path))
    }

    fn unfit(&self, name: &OsStr, path: PathBuf) -> FileError {
        let status = fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW);
        let what = status.map_or("has gone".to_owned(), |status| {
            format!("is {}", kind(&status))
        });
        FileError::unfit(path, what)
    }

    pub(super) fn from_parts(fd: OwnedFd, path: PathBuf) -> Self {
        Self { fd, path }
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::testing::STRANGER;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    pub fn place() -> (tempfile::TempDir, Dir) {
        let place = tempfile::tempdir().unwrap();
        let dir = Dir::open(place.path()).unwrap();
        (place, dir)
    }

    fn message<T: std::fmt::Debug>(result: Result<T, FileError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn a_link_on_the_way_is_refused() {
        let (place, dir) = place();
        std::fs::create_dir(place.path().join("real")).unwrap();
        symlink("real", place.path().join("link")).unwrap();
        assert!(dir.open_dir("real").is_ok());
        for opened in [
            dir.open_dir("link"),
            Dir::open(&place.path().join("link/below")),
        ] {
            assert!(message(opened).ends_with("link' is a symbolic link"));
        }
        assert!(message(Dir::open(Path::new("run"))).contains("not an absolute path"));
        assert!(message(Dir::open(Path::new("/run/../etc"))).contains("'..'"));
        for name in ["", ".", "..", "a/b", "a\0b"] {
            let opened = dir.open_dir(name);
            assert!(matches!(opened, Err(FileError::Unfit { .. })), "{name:?}");
        }
    }

    #[test]
    fn a_directory_is_made_once_with_its_owner_and_mode() {
        let (place, dir) = place();
        let status = |name: &str| {
            let status = std::fs::metadata(place.path().join(name)).unwrap();
            (status.uid(), status.gid(), status.mode() & 0o7777)
        };
        let owner = (STRANGER, STRANGER + 1);
        assert!(dir.create_dir("pipe", 0o700, owner).unwrap().1);
        assert_eq!(status("pipe"), (owner.0, owner.1, 0o700));
        // The owner opens it to all: closed again, not refused.
        let pipe = place.path().join("pipe");
        std::fs::set_permissions(pipe, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(!dir.create_dir("pipe", 0o700, owner).unwrap().1);
        assert_eq!(status("pipe").2, 0o700);
        let other = message(dir.create_dir("pipe", 0o700, (STRANGER + 7, 0)));
        assert!(other.contains("belongs to user 54321, not to 54328"));
        assert_eq!(status("pipe").0, STRANGER, "not given away");
        // What is not a directory is left alone.
        std::fs::write(place.path().join("file"), b"x").unwrap();
        symlink("pipe", place.path().join("link")).unwrap();
        for name in ["file", "link"] {
            let made = dir.create_dir(name, 0o700, owner);
            assert!(matches!(made, Err(FileError::Unfit { .. })), "{name}");
        }
        // Root's own, under any umask.
        dir.create_dir("jobs", 0o711, (0, 0)).unwrap();
        assert_eq!(status("jobs").2, 0o711);
    }

    #[test]
    fn a_write_is_whole_or_not_at_all() {
        let (place, dir) = place();
        let write = |bytes: &[u8], mode| {
            let written = dir.write("journal", bytes, mode, Durability::OnDisk);
            written.unwrap();
        };
        write(b"one", 0o600);
        // A crash left its half-made file; a user left a link and a file of the same hidden name.
        std::fs::write(place.path().join(".journal.new"), b"half").unwrap();
        write(b"two", 0o644);
        assert_eq!(dir.read_limited("journal", 3).unwrap().unwrap(), b"two");
        let mode = dir.status_of("journal").unwrap().unwrap().st_mode;
        assert_eq!(mode & 0o7777, 0o644);
        let victim = place.path().join("victim");
        std::fs::write(&victim, b"untouched").unwrap();
        symlink(&victim, place.path().join(".journal.new")).unwrap();
        write(b"three", 0o600);
        std::fs::hard_link(&victim, place.path().join(".journal.new")).unwrap();
        write(b"four", 0o600);
        // The file itself may be a link.
        symlink(&victim, place.path().join("record")).unwrap();
        let replaced = dir.write("record", b"ours", 0o644, Durability::Placed);
        replaced.unwrap();
        assert!(dir.read_limited("record", 9).unwrap().is_some());
        assert!(dir.remove_file("record").unwrap());
        assert_eq!(std::fs::read(&victim).unwrap(), b"untouched");
        let mut names = dir.names(10).unwrap();
        names.sort();
        assert_eq!(names, ["journal", "victim"]);
        assert!(matches!(dir.names(1), Err(FileError::Bound { .. })));
        // A failed write leaves the old file and no other.
        std::fs::create_dir(place.path().join("goal")).unwrap();
        let failed = dir.write("goal", b"x", 0o600, Durability::OnDisk);
        assert_eq!(failed.unwrap_err().errno(), Some(Errno::EISDIR));
        assert_eq!(dir.names(10).unwrap().len(), 3);
    }

    #[test]
    fn only_small_regular_files_are_read_and_nothing_blocks() {
        let (place, dir) = place();
        assert_eq!(dir.read_limited("absent", 9).unwrap(), None);
        std::fs::write(place.path().join("file"), b"12345").unwrap();
        assert_eq!(dir.read_limited("file", 5).unwrap().unwrap(), b"12345");
        assert!(message(dir.read_limited("file", 4)).ends_with("has more than 4 bytes"));
        nix::unistd::mkfifo(&place.path().join("fifo"), Mode::S_IRWXU).unwrap();
        symlink("file", place.path().join("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(place.path().join("socket")).unwrap();
        let devices = Dir::open(Path::new("/dev")).unwrap();
        for (dir, name, what) in [
            (&dir, "fifo", "fifo' is a FIFO, not a regular file"),
            (&dir, "link", "link' is a symbolic link"),
            (&dir, "socket", "socket' is a socket"),
            (&devices, "zero", "is a device, not a regular file"),
        ] {
            assert!(message(dir.read_limited(name, 9)).ends_with(what), "{name}");
        }
    }

    #[test]
    fn removing_twice_is_no_error() {
        let (place, dir) = place();
        std::fs::write(place.path().join("file"), b"").unwrap();
        std::fs::create_dir_all(place.path().join("full/below")).unwrap();
        assert!(dir.remove_file("file").unwrap());
        assert!(!dir.remove_file("file").unwrap());
        let full = dir.remove_empty_dir("full").unwrap_err();
        assert_eq!(full.errno(), Some(Errno::ENOTEMPTY));
        let full = dir.open_dir("full").unwrap();
        assert!(full.remove_empty_dir("below").unwrap());
        assert!(dir.remove_empty_dir("full").unwrap());
        assert!(!dir.remove_empty_dir("full").unwrap());
    }
}
