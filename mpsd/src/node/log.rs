//! Lines for the node's log: syslog, where there is one, without a library and without waiting.

use mpsd_core::text::one_line;
use std::os::unix::net::UnixDatagram;

/// Facility `daemon`, severities of syslog(3).
const DAEMON: u8 = 3 << 3;

/// How grave a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The node is broken.
    Error = 3,
    /// Something did not work, and nothing is proved.
    Warning = 4,
    /// What was done.
    Info = 6,
}

/// Sends one line to the node's log under the name of `program`. A node without syslog loses it: the scheduler's own
/// log has what the program wrote to its standard error.
pub fn line(program: &str, severity: Severity, text: &str) {
    let Ok(socket) = UnixDatagram::unbound() else {
        return;
    };
    if socket.set_nonblocking(true).is_err() {
        return;
    }
    let pid = std::process::id();
    let line = format!(
        "<{}>{program}[{pid}]: {}",
        DAEMON | severity as u8,
        one_line(text, 900)
    );
    let _ = socket.send_to(line.as_bytes(), "/dev/log");
}
