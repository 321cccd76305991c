//! The command session: lines from standard input to the control daemon, its answers to standard
//! output.

use std::io::{self, BufRead, Write};
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use tests::double::wire;

pub fn run() -> ExitCode {
    let Some(connection) = connect() else {
        eprintln!("Cannot find MPS control daemon process");
        return ExitCode::FAILURE;
    };
    let mut quitting = false;
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        if wire::send(&connection, format!("C{line}").as_bytes()).is_err() {
            return refused();
        }
        match wire::recv(&connection) {
            Some(answer) if answer[0] == b'R' => print(&answer[1..]),
            // `quit` was accepted: its outcome is known when the daemon is gone.
            Some(answer) if answer[0] == b'W' => quitting = true,
            Some(answer) => return exit_code(&answer),
            None => return refused(),
        }
    }
    match quitting.then(|| wire::recv(&connection)).flatten() {
        Some(answer) => exit_code(&answer),
        None => ExitCode::SUCCESS,
    }
}

/// Tries the owner's socket first. A user who may not open it gets the public one.
fn connect() -> Option<OwnedFd> {
    let directory = wire::pipe_directory();
    ["control_privileged", "control"].iter().find_map(|name| {
        let connection = wire::connect(&directory.join(name)).ok()?;
        // The first command shows whether the daemon listens.
        let _ = wire::send(&connection, b"UI");
        Some(connection)
    })
}

fn refused() -> ExitCode {
    eprintln!("Cannot send command to MPS control daemon process");
    ExitCode::FAILURE
}

fn print(text: &[u8]) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text).and_then(|()| out.flush());
}

fn exit_code(answer: &[u8]) -> ExitCode {
    ExitCode::from(answer.get(1).map_or(0, |digit| digit.wrapping_sub(b'0')))
}
