//! The terminal of `--watch`: its alternate screen, raw. Whatever ends us, the terminal is restored.

use crate::cli::terminal::size;
use crate::sys::signals::Signals;
use mpsd_core::failure::Undetermined;
use mpsd_core::{Failure, Refusal};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcsetattr};
use std::io::{Write, stdin, stdout};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// xterm's control sequences: the alternate screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Go to the first place; clear the rest of the line; clear the rest of the screen.
const HOME: &str = "\x1b[H";
const END_OF_LINE: &str = "\x1b[K\r\n";
const END_OF_SCREEN: &str = "\x1b[J";
/// Ctrl-C and Ctrl-D, which are plain bytes without line discipline.
const ENDS: [u8; 4] = [b'q', b'Q', 3, 4];

/// The terminal while `--watch` has it; restored when dropped.
#[derive(Debug)]
pub struct Screen {
    before: Termios,
    signals: Signals,
}

impl Screen {
    /// Takes the terminal.
    pub fn open() -> Result<Self, Failure> {
        if !isatty(stdin()) || !isatty(stdout()) {
            let why = "standard input or output is no terminal";
            return Err(Refusal::new("--watch", why, "a terminal, or status without --watch").into());
        }
        let failed = |why: String| Failure::from(Undetermined::new("the terminal", why));
        // Signals are read, not handled: the terminal is restored before we end.
        use Signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
        let signals = Signals::block(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH]);
        let signals = signals.map_err(|e| failed(e.to_string()))?;
        let before = tcgetattr(stdin()).map_err(|e| failed(e.to_string()))?;
        let screen = Self { before, signals };
        let mut raw = screen.before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw).map_err(|e| failed(e.to_string()))?;
        write(ENTER).map_err(failed)?;
        Ok(screen)
    }

    /// Shows `lines` of the terminal's width every `period` and after a change of size, until 'q', Ctrl-C or a signal.
    pub fn show(
        &self,
        period: Duration,
        mut lines: impl FnMut(usize) -> Result<Vec<String>, Failure>,
    ) -> Result<(), Failure> {
        loop {
            let (columns, rows) = size();
            let shown = frame(&lines(columns)?, rows);
            if write(&shown).is_err() || self.is_ended_before(Instant::now() + period) {
                return Ok(());
            }
        }
    }

    /// Waits for the next update; true: the user or a signal ends it.
    fn is_ended_before(&self, next: Instant) -> bool {
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let input = stdin();
            let mut fds = [
                PollFd::new(input.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            ];
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            if poll(&mut fds, timeout).is_err_and(|errno| errno != nix::errno::Errno::EINTR) {
                return true;
            }
            let typed = fds[0].any().unwrap_or(false);
            if let Ok(Some(signal)) = self.signals.read() {
                return signal != Signal::SIGWINCH;
            }
            if typed && is_end(input.as_fd()) {
                return true;
            }
        }
    }
}

/// Reads the typed bytes; true: one of [`ENDS`] is among them, or the terminal is gone.
fn is_end(input: impl AsFd) -> bool {
    let mut typed = [0_u8; 64];
    match nix::unistd::read(input, &mut typed) {
        Ok(0) | Err(_) => true,
        Ok(n) => typed.iter().take(n).any(|byte| ENDS.contains(byte)),
    }
}

/// One frame: no more rows than the terminal has, nothing left of the frame before.
fn frame(lines: &[String], rows: usize) -> String {
    let fits = lines.len() < rows;
    let shown = if fits { lines.len() } else { rows.saturating_sub(2) };
    let mut text = HOME.to_owned();
    for line in lines.iter().take(shown) {
        text.push_str(line);
        text.push_str(END_OF_LINE);
    }
    if !fits {
        let more = lines.len() - shown;
        text.push_str(&format!("... {more} lines more{END_OF_LINE}"));
    }
    text + "q: quit" + "\x1b[K" + END_OF_SCREEN
}

fn write(text: &str) -> Result<(), String> {
    let mut out = stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| e.to_string())
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = write(LEAVE);
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> usize {
        text.matches("\r\n").count() + 1
    }

    #[test]
    fn a_frame_fills_no_more_than_the_terminal_and_clears_the_frame_before() {
        let lines: Vec<String> = (0..10).map(|n| format!("line {n}")).collect();
        for height in 3..=20 {
            let text = frame(&lines, height);
            assert!(rows(&text) <= height, "{height}: {text:?}");
            assert_eq!(text.contains("lines more"), height <= 10, "{height}");
            // Nothing of the frame before is left.
            assert!(
                text.starts_with(HOME) && text.ends_with(END_OF_SCREEN),
                "{text:?}"
            );
            assert_eq!(text.matches("\x1b[K").count(), rows(&text), "{text:?}");
        }
        assert!(frame(&lines, 5).contains("... 7 lines more"));
    }
}
