//! Child programs with a deadline: every wait is bounded, and every child is reaped.

use std::ffi::OsStr;
use std::io::{Read, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

pub use crate::double::look::alive;
use crate::double::look::wait_until;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// A killed process that still holds a pipe ends late on a loaded machine.
const PIPE_WAIT: Duration = Duration::from_secs(3);

/// Turns SIGINT, SIGTERM and SIGHUP into a flag, so that guards are dropped.
pub fn catch_interrupts() -> Result<()> {
    let set = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    set.thread_block()?;
    thread::spawn(move || {
        if set.wait().is_ok() {
            INTERRUPTED.store(true, Ordering::SeqCst);
        }
    });
    Ok(())
}

pub fn go_on() -> Result<()> {
    ensure!(!INTERRUPTED.load(Ordering::SeqCst), "interrupted");
    Ok(())
}

pub fn pause(length: Duration) -> Result<()> {
    until(length, Duration::from_millis(20), || false)?;
    go_on()
}

pub fn until(limit: Duration, every: Duration, mut done: impl FnMut() -> bool) -> Result<bool> {
    let end = Instant::now() + limit;
    loop {
        if done() {
            return Ok(true);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        go_on()?;
        thread::sleep(every.min(left));
    }
}

#[derive(Debug, Clone)]
pub struct Ran {
    pub what: String,
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// From before the fork until its end was collected.
    pub wall: Duration,
    /// Something that it started still holds its output open.
    pub held_open: bool,
}

impl Ran {
    pub fn success(self) -> Result<Self> {
        ensure!(self.code == Some(0), "{}", self.story());
        Ok(self)
    }

    pub fn exits(self, code: i32) -> Result<Self> {
        let is_so = self.code == Some(code);
        ensure!(is_so, "it should exit with {code}: {}", self.story());
        Ok(self)
    }

    pub fn fails(self) -> Result<Self> {
        ensure!(self.code != Some(0), "it should fail: {}", self.story());
        Ok(self)
    }

    #[track_caller]
    pub fn answers(&self, answer: &str) {
        let told = (self.stdout.as_str(), self.code);
        assert_eq!(told, (answer, Some(0)), "{self:?}");
    }

    /// It was killed before its end, or still runs.
    pub fn hung(&self) -> bool {
        self.code.is_none() && self.signal.is_none()
    }

    pub fn said(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }

    pub fn story(&self) -> String {
        let end = match (self.code, self.signal) {
            (Some(code), _) => format!("exit {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "no status".into(),
        };
        let story = format!("'{}': {end}\n{}", self.what, self.said());
        story.trim_end().to_owned()
    }

    pub fn ms(&self) -> f64 {
        crate::samples::milliseconds(self.wall)
    }
}

#[derive(Debug)]
pub struct Running {
    what: String,
    pid: Pid,
    begin: Instant,
    end: Receiver<(ExitStatus, Instant)>,
    ended: Option<(ExitStatus, Instant)>,
    drains: [Drain; 2],
}

impl Running {
    pub fn start(command: &mut Command, input: &str) -> Result<Self> {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let what = words
            .map(OsStr::to_string_lossy)
            .collect::<Vec<_>>()
            .join(" ");
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        mpsd_sys::signals::start_fresh(command);
        let begin = Instant::now();
        let child = command.spawn();
        let mut child = child.with_context(|| format!("cannot start '{what}'"))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program may close its input without reading it.
            let _ = stdin.write_all(input.as_bytes());
        }
        let drains = [
            Drain::start(child.stdout.take()),
            Drain::start(child.stderr.take()),
        ];
        let pid = Pid::from_raw(child.id().cast_signed());
        let (sender, end) = mpsc::channel();
        thread::spawn(move || {
            if let Ok(status) = child.wait() {
                let _ = sender.send((status, Instant::now()));
            }
        });
        Ok(Self {
            what,
            pid,
            begin,
            end,
            ended: None,
            drains,
        })
    }

    pub fn pid(&self) -> u32 {
        self.pid.as_raw().cast_unsigned()
    }

    pub fn stdout_so_far(&self) -> String {
        self.drains[0].so_far()
    }

    pub fn stderr_so_far(&self) -> String {
        self.drains[1].so_far()
    }

    pub fn ended_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.end.recv_timeout(limit).ok();
        }
        self.ended.map(|(status, _)| status)
    }

    /// Without a status if it still runs.
    pub fn so_far(&self) -> Ran {
        let status = self.ended.map(|(status, _)| status);
        let until = self.ended.map_or_else(Instant::now, |(_, at)| at);
        Ran {
            what: self.what.clone(),
            code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            stdout: self.stdout_so_far(),
            stderr: self.stderr_so_far(),
            wall: until - self.begin,
            held_open: false,
        }
    }

    /// Waits for its end. If it takes longer than `limit` it is killed; that is an error.
    pub fn finish(mut self, limit: Duration) -> Result<Ran> {
        let deadline = self.begin + limit;
        while self.ended_within(Duration::from_millis(50)).is_none() {
            go_on()?;
            if Instant::now() >= deadline {
                let (ran, limit) = (self.so_far(), limit.as_secs());
                bail!("'{}' took longer than {limit} s\n{}", ran.what, ran.said());
            }
        }
        let open = self.drains.each_ref().map(|drain| !drain.wait(PIPE_WAIT));
        Ok(Ran {
            held_open: open[0] || open[1],
            ..self.so_far()
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended_within(Duration::ZERO).is_some() {
            return;
        }
        // The child is not yet reaped, so the pid is still its own.
        let _ = kill(self.pid, Signal::SIGKILL);
        let _ = self.end.recv_timeout(Duration::from_secs(5));
    }
}

pub fn run(command: &mut Command, input: &str, limit: Duration) -> Result<Ran> {
    Running::start(command, input)?.finish(limit)
}

#[derive(Debug)]
struct Drain {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Drain {
    fn start(pipe: Option<impl Read + Send + 'static>) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut buffer = [0; 8192];
            let Some(mut pipe) = pipe else { return };
            while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
                sink.extend_from_slice(&buffer[..count]);
            }
        });
        Self { bytes, reader }
    }

    fn wait(&self, limit: Duration) -> bool {
        wait_until(limit, || self.reader.is_finished())
    }

    fn so_far(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
