//! Where the cgroup hierarchies are mounted.

use super::CgroupError;
use crate::sys::files::{Dir, FileError};
use crate::sys::process::read_at;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, fstatfs};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The two kinds of hierarchy that serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    /// v2.
    Unified,
    /// systemd's v1 hierarchy without controllers.
    Named,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub path: PathBuf,
    pub version: Version,
}

/// The hierarchies of this node, the better one first.
pub(super) fn usable() -> Result<Vec<Mount>, CgroupError> {
    const CAP: usize = 16 << 20;
    let path = "/proc/self";
    let text = open(
        path,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )
    .and_then(|own| read_at(own, "mountinfo", CAP));
    match text {
        Ok(text) => Ok(parse(&text)),
        Err(Errno::ENOENT) => Ok(Vec::new()),
        Err(errno) => Err(FileError::io("read", "/proc/self/mountinfo")(errno).into()),
    }
}

/// Reads proc_pid_mountinfo(5). Of several mounts of one hierarchy the one at a usual place is taken.
fn parse(text: &[u8]) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = text.split(|b| *b == b'\n').filter_map(line).collect();
    let usual = |mount: &Mount| {
        [
            "/sys/fs/cgroup",
            "/sys/fs/cgroup/unified",
            "/sys/fs/cgroup/systemd",
        ]
        .iter()
        .any(|place| mount.path.as_os_str() == *place)
    };
    mounts.sort_by_key(|mount| (mount.version, !usual(mount)));
    mounts.dedup_by_key(|mount| mount.version);
    mounts
}

fn line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let path = unescape(fields.nth(4)?);
    let mut after = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, _source, options) = (after.next()?, after.next()?, after.next()?);
    let version = match kind {
        b"cgroup2" => Version::Unified,
        b"cgroup"
            if options
                .split(|b| *b == b',')
                .any(|option| option == b"name=systemd") =>
        {
            Version::Named
        }
        _ => return None,
    };
    Some(Mount { path, version })
}

/// Undoes the kernel's `\040` for a blank and the like.
fn unescape(text: &[u8]) -> PathBuf {
    let mut plain = Vec::new();
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let code = after
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(plain).into()
}

/// What kind of hierarchy a directory lies in, by its file system.
pub(super) fn version_at(dir: &Dir) -> Option<Version> {
    match fstatfs(dir.as_fd()).ok()?.filesystem_type() {
        CGROUP2_SUPER_MAGIC => Some(Version::Unified),
        CGROUP_SUPER_MAGIC => Some(Version::Named),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_layouts_of_the_world() {
        let unified = b"29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(
            parse(unified),
            [Mount {
                path: "/sys/fs/cgroup".into(),
                version: Version::Unified
            }]
        );
        let hybrid = b"31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
            35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
            40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n\
            42 31 0:38 / /mnt/again rw,relatime - cgroup2 cgroup2 rw\n";
        let found: Vec<_> = parse(hybrid).into_iter().map(|mount| mount.path).collect();
        assert_eq!(
            found,
            [
                PathBuf::from("/sys/fs/cgroup/unified"),
                "/sys/fs/cgroup/systemd".into()
            ]
        );
        let v1 = b"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(parse(v1), []);
        assert_eq!(parse(b"garbage\n\n1 2 3\n"), []);
        let odd = b"29 22 0:26 / /mnt/a\\040b\\ rw - cgroup2 none rw\n";
        assert_eq!(parse(odd)[0].path, PathBuf::from("/mnt/a b\\"));
    }
}
