//! The mounts of this process's namespace, as the kernel lists them (proc_pid_mountinfo(5)). No file system is asked.

use super::descriptors::read_at;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Most that is read of the list. Bytes.
const CAP: usize = 16 << 20;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// Its number in this namespace; another mount may have it later.
    pub id: u64,
    /// What of its file system it shows.
    pub root: PathBuf,
    /// Where it lies.
    pub path: PathBuf,
    /// The kind of file system.
    pub kind: String,
    /// The file system's own options.
    pub options: String,
}

impl Mount {
    /// Whether the file system has this option.
    pub fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|one| one == option)
    }
}

/// All of them; a mount that lies below another one comes after it.
///
/// # Errors
/// The kernel's. ENOENT: there is no `/proc`.
pub(super) fn all() -> Result<Vec<Mount>, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let own = open("/proc/self", flags, Mode::empty())?;
    Ok(parse(&read_at(own, "mountinfo", CAP)?))
}

/// Reads the list.
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
