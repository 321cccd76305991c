//! Follows the vendor's log: the control daemon's and the server's lines, in one file of the user's.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// File that takes the control daemon's output, in the log directory.
pub const CONTROL_LOG: &str = "control.log";
/// Longest line that is understood; the rest of a longer one is dropped. Bytes.
const LONGEST_LINE: usize = 4096;
/// How many lines are kept for an error message.
const KEPT: usize = 12;

/// Neither a link nor a FIFO of the user's leads, or keeps, us elsewhere.
const FLAGS: i32 = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC;

/// Opens a log of the user's, made if need be, to write at its end.
pub(super) fn to_append(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(FLAGS)
        .open(path)
}

/// A log being followed.
#[derive(Debug)]
pub struct Tail {
    file: File,
    rest: Vec<u8>,
    last: VecDeque<String>,
}

impl Tail {
    /// Makes `control.log` in `directory` and opens it twice: for the daemon to append to, and for us to read.
    ///
    /// # Errors
    /// As the system says; a link or a FIFO in its place is an error.
    pub fn create(directory: &Path) -> io::Result<(File, Self)> {
        let path = directory.join(CONTROL_LOG);
        let writer = to_append(&path)?;
        let file = OpenOptions::new().read(true).custom_flags(FLAGS).open(&path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        Ok((
            writer,
            Self {
                file,
                rest: Vec::new(),
                last: VecDeque::new(),
            },
        ))
    }

    /// The lines that came since the last call.
    pub fn lines(&mut self) -> Vec<String> {
        let mut block = [0_u8; 16 * 1024];
        let mut lines = Vec::new();
        while let Ok(n) = self.file.read(&mut block) {
            if n == 0 {
                break;
            }
            for byte in &block[..n] {
                match byte {
                    b'\n' => lines.push(self.end_line()),
                    _ if self.rest.len() < LONGEST_LINE => self.rest.push(*byte),
                    _ => {}
                }
            }
        }
        for line in &lines {
            if self.last.len() == KEPT {
                self.last.pop_front();
            }
            self.last.push_back(line.clone());
        }
        lines
    }

    /// The last lines seen, oldest first.
    pub fn last(&self) -> Vec<String> {
        self.last
            .iter()
            .map(|line| mpsd_core::text::one_line(line, 300))
            .collect()
    }

    fn end_line(&mut self) -> String {
        let line = String::from_utf8_lossy(&self.rest).into_owned();
        self.rest.clear();
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn lines_come_once_whole_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, mut tail) = Tail::create(dir.path()).unwrap();
        writer.write_all(b"one\ntw").unwrap();
        assert_eq!(tail.lines(), ["one"]);
        writer.write_all(b"o\n").unwrap();
        writer.write_all(&[b'x'; 10_000]).unwrap();
        writer.write_all(b"\n").unwrap();
        let lines = tail.lines();
        assert_eq!(lines[0], "two");
        assert_eq!(lines[1].len(), LONGEST_LINE);
        assert!(tail.lines().is_empty());
    }

    #[test]
    fn a_link_or_a_fifo_in_its_place_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join(CONTROL_LOG)).unwrap();
        assert!(Tail::create(dir.path()).is_err());
        let dir = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&dir.path().join(CONTROL_LOG), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(Tail::create(dir.path()).is_err());
    }
}
