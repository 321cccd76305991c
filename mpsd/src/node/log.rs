//! Lines for the node's log and for a program's caller: syslog, and systemd's journal for the audit
//! trail. Nothing waits.

use crate::job::audit::Entry;
use crate::job::node::Severity;
use mpsd_core::text::one_line;
use std::io::Write;
use std::os::unix::net::UnixDatagram;

const JOURNAL: &str = "/run/systemd/journal/socket";
/// Longest value of a field, characters: the limits of a daemon with hundreds of GPUs fit.
const LONGEST: usize = 32_000;
const DAEMON: u8 = 3 << 3;

/// A node without syslog loses it: the scheduler's own log has the program's standard error.
pub fn line(program: &str, severity: Severity, text: &str) {
    let (pid, level) = (std::process::id(), DAEMON | severity as u8);
    let line = format!("<{level}>{program}[{pid}]: {}", one_line(text, 900));
    let _ = send(&line, "/dev/log");
}

/// To systemd's journal, by its native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL). Without a
/// journal that takes it now, it sends a line.
pub fn entry(program: &str, entry: &Entry) {
    if journal(program, entry).is_err() {
        line(program, Severity::Info, &entry.line);
    }
}

fn journal(program: &str, entry: &Entry) -> std::io::Result<()> {
    let own = [
        ("MESSAGE", entry.line.clone()),
        ("PRIORITY", (Severity::Info as u8).to_string()),
        ("SYSLOG_FACILITY", (DAEMON >> 3).to_string()),
        ("SYSLOG_IDENTIFIER", program.to_owned()),
    ];
    // A value of one line is written as NAME=value.
    let all = own.iter().chain(&entry.fields);
    let lines = all.map(|(name, value)| format!("{name}={}\n", one_line(value, LONGEST)));
    send(&lines.collect::<String>(), JOURNAL)
}

fn send(text: &str, to: &str) -> std::io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to(text.as_bytes(), to).map(drop)
}

/// On one line; a closed standard error loses it.
pub fn complain(program: &str, text: &str) {
    let line = format!("{program}: {}\n", one_line(text, 2000));
    let _ = std::io::stderr().write_all(line.as_bytes());
}
