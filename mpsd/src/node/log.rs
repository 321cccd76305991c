//! Lines for the node's log and for whoever started a program. Syslog, where there is one, without a library and without
//! waiting.

use crate::job::node::Severity;
use mpsd_core::text::one_line;
use std::io::Write;
use std::os::unix::net::UnixDatagram;

/// Facility `daemon`, severities of syslog(3).
const DAEMON: u8 = 3 << 3;

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

/// Prints `program: text` on standard error, on one line; a closed standard error loses it.
pub fn complain(program: &str, text: &str) {
    let line = format!("{program}: {}\n", one_line(text, 2000));
    let _ = std::io::stderr().write_all(line.as_bytes());
}
