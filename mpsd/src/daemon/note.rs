//! `mpsd --note FILE`: a line of root's in the output file of a job that did not start, written by a process of its user's.

use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, SFlag, fstat};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

/// Longest line. Bytes.
const LONGEST: u64 = 4096;

/// Appends what stands on standard input to `file`, which it makes if it must; its user's scheduler may empty it later.
///
/// # Errors
/// One line: the file cannot be written, or is no ordinary one.
pub fn append(file: &Path, from: impl std::io::Read) -> Result<(), String> {
    let failed = |why: String| format!("'{}': {why}", file.display());
    let mut text = Vec::new();
    from.take(LONGEST)
        .read_to_end(&mut text)
        .map_err(|e| failed(e.to_string()))?;
    // A pipe without a reader, and a terminal, keep nobody.
    let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CREAT | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let own = open(file, flags | OFlag::O_CLOEXEC, Mode::S_IRUSR | Mode::S_IWUSR);
    let mut own = File::from(own.map_err(|errno| failed(errno.desc().to_owned()))?);
    let status = fstat(&own).map_err(|errno| failed(errno.desc().to_owned()))?;
    if SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT != SFlag::S_IFREG {
        return Err(failed("it is no ordinary file".to_owned()));
    }
    own.write_all(&text).map_err(|e| failed(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_behind_what_is_there_and_into_nothing_but_a_file() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("job-1.out");
        append(&file, &b"one\n"[..]).unwrap();
        append(&file, &b"two\n"[..]).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\ntwo\n");
        let pipe = place.path().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        for other in [Path::new("/dev/null"), place.path(), &pipe] {
            let why = append(other, &b"x\n"[..]).unwrap_err();
            assert!(why.contains(&other.display().to_string()), "{why}");
        }
    }
}
