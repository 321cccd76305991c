//! The log, in the recorded form: `[2026-11-21 02:38:36.726 Control   621] text`.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::libc;

#[derive(Debug)]
pub struct Log {
    own: Option<File>,
    server: Option<File>,
}

impl Log {
    /// To standard output (recorded: not standard error), with the lines of every server.
    pub fn stdout() -> Log {
        let again = || nix::unistd::dup(std::io::stdout()).ok().map(File::from);
        let (own, server) = (again(), again());
        Log { own, server }
    }

    pub fn files(directory: &Path) -> Log {
        let open = |name: &str| {
            let mut options = OpenOptions::new();
            let options = options.append(true).create(true);
            options.open(directory.join(name)).ok()
        };
        let (own, server) = (open("control.log"), open("server.log"));
        Log { own, server }
    }

    pub fn of_servers(&self) -> Option<File> {
        self.server.as_ref().and_then(|f| f.try_clone().ok())
    }

    pub fn line(&self, who: &str, text: &str) {
        let Some(mut file) = self.own.as_ref() else {
            return;
        };
        let line = format!("[{} {who} {:>5}] {text}\n", now(), std::process::id());
        // One write, so that lines of several processes do not mix.
        let _ = file.write_all(line.as_bytes());
    }

    pub fn control(&self, text: impl AsRef<str>) {
        self.line("Control", text.as_ref());
    }

    pub fn server(&self, text: impl AsRef<str>) {
        self.line("Server", text.as_ref());
    }
}

fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.unwrap_or_default();
    let seconds = since.as_secs() as libc::time_t;
    // SAFETY: plain numbers, and zero is a valid value of each.
    let mut at: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both are ours for the call.
    unsafe { libc::gmtime_r(&seconds, &mut at) };
    let (year, month, day) = (at.tm_year + 1900, at.tm_mon + 1, at.tm_mday);
    let (hour, minute, second) = (at.tm_hour, at.tm_min, at.tm_sec);
    let ms = since.subsec_millis();
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{ms:03}")
}
