//! One session with a control daemon: the vendor's own program, commands on its standard input, a deadline.

use crate::sys::signals::start_fresh;
use mpsd_core::environment::{LOG_DIRECTORY, PIPE_DIRECTORY, VISIBLE_DEVICES};
use mpsd_core::record::Daemon;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Most that is read of an answer, bytes: 48 clients' listings have a few kilobytes.
const LONGEST_ANSWER: usize = 256 * 1024;
/// A child that closed its output ends within microseconds; how often it is looked at until then.
const REAP_PAUSE: Duration = Duration::from_micros(200);

/// What came of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Exit code; `None` when a signal ended the program.
    pub code: Option<i32>,
    /// All that it said.
    pub text: String,
}

impl Answer {
    /// The process ids in a listing, one a line.
    pub fn numbers(&self) -> Vec<i32> {
        self.text
            .lines()
            .filter_map(|line| line.trim().parse().ok())
            .filter(|pid| *pid > 1)
            .collect()
    }

    /// The recorded answer of the vendor's program when nobody listens (exit 1).
    pub fn nobody_listens(&self) -> bool {
        self.code == Some(1) && self.text.contains("Cannot find MPS control daemon")
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// It could not be run.
    #[error("cannot run '{0}': {1}")]
    Start(String, String),
    /// The deadline passed: the daemon hangs, or waits for a server that hangs.
    #[error("no answer to '{0}' within {1} ms: the control daemon or its server hangs")]
    Deadline(String, u128),
}

/// The vendor's program, made ready to talk to, or be, the control daemon of `daemon`. Its environment is written
/// from nothing; it looks for the server's program beside itself.
pub fn command(control: &Path, daemon: &Daemon) -> Command {
    let beside = control.parent().unwrap_or(Path::new("/usr/bin")).display();
    let gpus: Vec<&str> = daemon.gpus.iter().map(mpsd_core::GpuUuid::as_str).collect();
    let mut command = Command::new(control);
    command
        .env_clear()
        .env("PATH", format!("{beside}:/usr/bin:/bin"))
        .env(PIPE_DIRECTORY, &daemon.pipe)
        .env(LOG_DIRECTORY, &daemon.log)
        .env(VISIBLE_DEVICES, gpus.join(","))
        // Releases from r615 on speak a second protocol when told so; this suite speaks the text one.
        .env("CUDA_MPS_PROTOCOL_VERSION", "2")
        .current_dir("/");
    // Ours are blocked, since they come through a descriptor; a server started with SIGTERM blocked never obeys it.
    start_fresh(&mut command);
    command
}

/// Says `commands` to the control daemon of `daemon` and waits for the whole answer.
///
/// # Errors
/// [`SessionError`]; at the deadline the program is killed and reaped.
pub fn say(control: &Path, daemon: &Daemon, commands: &str, limit: Duration) -> Result<Answer, SessionError> {
    let first = commands.lines().next().unwrap_or("").to_owned();
    let end = Instant::now() + limit;
    let mut child = command(control, daemon)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| SessionError::Start(control.display().to_string(), e.to_string()))?;
    if let Some(mut input) = child.stdin.take() {
        // A program that has ended already says so by its exit code.
        let _ = input.write_all(commands.as_bytes());
    }
    let text = child.stdout.take().and_then(|mut out| read_all(&mut out, end));
    let code = reap(&mut child, end);
    match (text, code) {
        (Some(text), Some(code)) => Ok(Answer { code, text }),
        _ => {
            let _ = child.kill();
            let _ = child.wait();
            Err(SessionError::Deadline(first, limit.as_millis()))
        }
    }
}

fn read_all(out: &mut ChildStdout, end: Instant) -> Option<String> {
    let mut all = Vec::new();
    let mut block = [0_u8; 4096];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || all.len() > LONGEST_ANSWER {
            return None;
        }
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        if poll(&mut [PollFd::new(out.as_fd(), PollFlags::POLLIN)], timeout).is_ok_and(|n| n > 0) {
            match out.read(&mut block) {
                Ok(0) => return Some(String::from_utf8_lossy(&all).into_owned()),
                Ok(n) => all.extend_from_slice(&block[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }
}

fn reap(child: &mut Child, end: Instant) -> Option<Option<i32>> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.code()),
            Ok(None) if Instant::now() < end => std::thread::sleep(REAP_PAUSE),
            _ => return None,
        }
    }
}
