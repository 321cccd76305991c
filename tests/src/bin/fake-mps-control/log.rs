//! The log, in the recorded form: `[2026-11-21 02:38:36.726 Control   621] text`.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Where log lines go.
#[derive(Debug)]
pub struct Log(Option<File>);

impl Log {
    /// To standard output (recorded: not standard error): foreground mode, and every server.
    pub fn stdout() -> Log {
        let fd = nix::unistd::dup(std::io::stdout()).ok();
        Log(fd.map(File::from))
    }

    /// To a file; to nowhere if it cannot be written.
    pub fn file(path: &Path) -> Log {
        Log(OpenOptions::new().create(true).append(true).open(path).ok())
    }

    /// A copy of the file behind it, for the server's output.
    pub fn descriptor(&self) -> Option<File> {
        self.0.as_ref().and_then(|f| f.try_clone().ok())
    }

    /// One line of `who` (`Control`, `Server`, `Other`), with the pid of the writing process.
    pub fn line(&self, who: &str, text: &str) {
        let Some(mut file) = self.0.as_ref() else { return };
        let line = format!("[{} {who} {:>5}] {text}\n", now(), std::process::id());
        // One write, so that lines of several processes do not mix.
        let _ = file.write_all(line.as_bytes());
    }

    /// One line of the control daemon.
    pub fn control(&self, text: &str) {
        self.line("Control", text);
    }
}

fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days as i64);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!(
        "{year}-{month:02}-{day:02} {h:02}:{m:02}:{s:02}.{:03}",
        since.subsec_millis()
    )
}

/// Days since 1970 as a date (Howard Hinnant's `civil_from_days`).
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (
        yoe + era * 400 + i64::from(month <= 2),
        month,
        doy - (153 * mp + 2) / 5 + 1,
    )
}
