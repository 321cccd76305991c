//! Child programs with a deadline: every wait is bounded, and every child is reaped.

use std::io::{Read, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

/// The user has interrupted the run: every wait ends, and the guards clean up.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// How long a pipe may stay open after its program's end because a child still holds it: on a
/// loaded machine a killed process ends late.
const PIPE_WAIT: Duration = Duration::from_secs(3);

/// Turns SIGINT, SIGTERM and SIGHUP into a flag, so that guards are dropped.
pub fn catch_interrupts() -> Result<()> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        set.add(signal);
    }
    set.thread_block()?;
    thread::spawn(move || {
        if set.wait().is_ok() {
            INTERRUPTED.store(true, Ordering::SeqCst);
        }
    });
    Ok(())
}

pub fn go_on() -> Result<()> {
    if INTERRUPTED.load(Ordering::SeqCst) {
        bail!("interrupted");
    }
    Ok(())
}

pub fn pause(length: Duration) -> Result<()> {
    let end = Instant::now() + length;
    while Instant::now() < end {
        go_on()?;
        thread::sleep(Duration::from_millis(20).min(end.saturating_duration_since(Instant::now())));
    }
    go_on()
}

/// Polls until `done`, at most `limit`. Returns whether it happened.
pub fn until(limit: Duration, every: Duration, mut done: impl FnMut() -> bool) -> Result<bool> {
    let end = Instant::now() + limit;
    loop {
        if done() {
            return Ok(true);
        }
        if Instant::now() >= end {
            return Ok(false);
        }
        go_on()?;
        thread::sleep(every);
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
        if self.code == Some(0) {
            return Ok(self);
        }
        bail!("{}", self.story())
    }

    pub fn exits(self, code: i32) -> Result<Self> {
        if self.code == Some(code) {
            return Ok(self);
        }
        bail!("it should exit with {code}: {}", self.story())
    }

    pub fn fails(self) -> Result<Self> {
        if self.code != Some(0) {
            return Ok(self);
        }
        bail!("it should fail: {}", self.story())
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
        format!("'{}': {end}\n{}{}", self.what, self.stdout, self.stderr)
            .trim_end()
            .to_owned()
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
    /// Its end, after it was taken out of `end`.
    ended: Option<(ExitStatus, Instant)>,
    drains: [Drain; 2],
}

impl Running {
    pub fn start(command: &mut Command, input: &str) -> Result<Self> {
        let what = command_line(command);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        mpsd_sys::signals::start_fresh(command);
        let begin = Instant::now();
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start '{what}'"))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program may close its input without reading it.
            let _ = stdin.write_all(input.as_bytes());
        }
        let drains = [
            Drain::start(child.stdout.take()),
            Drain::start(child.stderr.take()),
        ];
        let pid = Pid::from_raw(child.id().cast_signed());
        Ok(Self {
            what,
            pid,
            begin,
            end: reap(child),
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

    /// Waits for its end. If it takes longer than `limit` it is killed; that is an error.
    pub fn finish(mut self, limit: Duration) -> Result<Ran> {
        let deadline = self.begin + limit;
        let (status, at) = loop {
            if self.ended_within(Duration::from_millis(50)).is_some()
                && let Some(end) = self.ended
            {
                break end;
            }
            go_on()?;
            if Instant::now() >= deadline {
                let [stdout, stderr] = self.drains.each_ref().map(Drain::so_far);
                bail!(
                    "'{}' took longer than {} s\n{stdout}{stderr}",
                    self.what,
                    limit.as_secs()
                );
            }
        };
        let open = self.drains.each_ref().map(|drain| !drain.wait(PIPE_WAIT));
        let [stdout, stderr] = self.drains.each_ref().map(Drain::so_far);
        Ok(Ran {
            what: std::mem::take(&mut self.what),
            code: status.code(),
            signal: status.signal(),
            stdout,
            stderr,
            wall: at - self.begin,
            held_open: open[0] || open[1],
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

fn reap(mut child: Child) -> Receiver<(ExitStatus, Instant)> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        if let Ok(status) = child.wait() {
            let _ = sender.send((status, Instant::now()));
        }
    });
    receiver
}

fn command_line(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(
        command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned()),
    );
    words.join(" ")
}

#[derive(Debug)]
pub struct Drain {
    bytes: Arc<Mutex<Vec<u8>>>,
    closed: Mutex<Receiver<()>>,
}

impl Drain {
    pub fn start(pipe: Option<impl Read + Send + 'static>) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (sender, closed) = mpsc::channel();
        let sink = Arc::clone(&bytes);
        thread::spawn(move || {
            let mut buffer = [0; 8192];
            if let Some(mut pipe) = pipe {
                while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                    sink.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .extend_from_slice(&buffer[..count]);
                }
            }
            let _ = sender.send(());
        });
        Self {
            bytes,
            closed: Mutex::new(closed),
        }
    }

    pub fn wait(&self, limit: Duration) -> bool {
        self.closed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv_timeout(limit)
            .is_ok()
    }
    pub fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
            .into_owned()
    }
}

/// Whether `pid` runs. An uncollected zombie does not count.
pub use crate::double::look::alive;
