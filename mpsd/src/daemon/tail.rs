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
mod tests;
