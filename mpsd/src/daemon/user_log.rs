//! The job's own log, for its user: what happened to their MPS, in plain words.

use super::tail::to_append;
use crate::job::spec::Spec;
use mpsd_core::text::one_line;
use std::fs::File;
use std::io::Write;

/// File name in the first daemon's log directory.
pub const USER_LOG: &str = "mpsd.log";

/// Appends lines to `mpsd.log`; a full disk loses lines and nothing else.
#[derive(Debug)]
pub struct UserLog {
    file: Option<File>,
}

impl UserLog {
    /// Opens the log of `spec`'s first daemon.
    pub fn open(spec: &Spec) -> Self {
        let daemon = spec.daemons.first();
        let file = daemon.and_then(|daemon| to_append(&daemon.log.join(USER_LOG)).ok());
        Self { file }
    }

    /// Writes one line with the time since 1970, seconds.
    pub fn line(&mut self, text: &str) {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        if let Some(file) = &mut self.file {
            let line = format!(
                "{}.{:03} {}\n",
                now.as_secs(),
                now.subsec_millis(),
                one_line(text, 500)
            );
            let _ = file.write_all(line.as_bytes());
        }
    }
}
