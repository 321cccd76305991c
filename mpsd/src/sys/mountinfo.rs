//! The mounts of this process's namespace, as the kernel lists them (proc_pid_mountinfo(5)). No file system is asked.

use super::descriptors::read_at;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

const MOST: usize = 16 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
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

/// All of them, in the kernel's order: a mount stands after the mount below which it lies. ENOENT: there is no `/proc`.
pub(super) fn all() -> Result<Vec<Mount>, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let own = open("/proc/self", flags, Mode::empty())?;
    Ok(parse(&read_at(own, "mountinfo", MOST)?))
}

pub(super) fn parse(text: &[u8]) -> Vec<Mount> {
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
        let code = after.get(..3).and_then(|code| std::str::from_utf8(code).ok());
        let code = code.and_then(|code| u8::from_str_radix(code, 8).ok());
        let (byte, length) = match code.filter(|_| *first == b'\\') {
            Some(byte) => (byte, 4),
            None => (*first, 1),
        };
        plain.push(byte);
        rest = rest.get(length..).unwrap_or_default();
    }
    OsString::from_vec(plain).into()
}
