//! NVIDIA's control daemon, started alone, unchecked: the floor of the
//! prologue's time.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use ::tests::child::{self, Ran};
use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longest time for a step of the start; 0.75 s was the longest ever seen.
const STEP: Duration = Duration::from_secs(20);

pub struct Daemon<'a> {
    control: Box<dyn Fn() -> Command + Send + 'a>,
    directory: PathBuf,
    child: Option<Child>,
    lines: Receiver<(String, Instant)>,
    /// From before the daemon's fork to the line `NEW SERVER <pid>: Ready`.
    pub ready: Duration,
    server: u32,
}

impl<'a> Daemon<'a> {
    /// Starts daemon and server: spawn, wait for the socket in `pipe`, `session` with a
    /// `start_server`, wait for Ready.
    pub fn start(
        control: impl Fn() -> Command + Send + 'a,
        directory: PathBuf,
        pipe: &Path,
        session: &str,
    ) -> Result<Self> {
        let (reader, writer) = std::io::pipe()?;
        let mut command = control();
        command
            .arg("-f")
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer);
        mpsd_sys::signals::start_fresh(&mut command);
        let begin = Instant::now();
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        // The command holds the pipe's writing end; the reader must see the daemon's end.
        drop(command);
        let lines = read_lines(reader);
        let mut daemon = Self {
            control: Box::new(control),
            directory,
            child: Some(child),
            lines,
            ready: Duration::ZERO,
            server: 0,
        };
        let limit = STEP.as_secs();
        let socket = pipe.join("control");
        while !socket.exists() {
            let said = || daemon.lines.try_iter().map(|(line, _)| line + "\n");
            ensure!(
                begin.elapsed() < STEP,
                "no control socket after {limit} s:\n{}",
                said().collect::<String>()
            );
            thread::sleep(Duration::from_micros(100));
        }
        // It exists some milliseconds before the daemon answers.
        loop {
            let ran = daemon.command(session)?;
            if ran.code == Some(0) {
                break;
            }
            let story = ran.story();
            ensure!(
                begin.elapsed() < STEP,
                "the daemon does not answer: {story}"
            );
        }
        daemon.ready = daemon.wait_for_ready()? - begin;
        Ok(daemon)
    }

    fn wait_for_ready(&mut self) -> Result<Instant> {
        let (deadline, mut log) = (Instant::now() + STEP, String::new());
        loop {
            child::go_on()?;
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((line, at)) = self.lines.recv_timeout(left) else {
                bail!("no server was ready after {} s:\n{log}", STEP.as_secs());
            };
            let server = line
                .split_once("NEW SERVER ")
                .and_then(|(_, rest)| rest.strip_suffix(": Ready"));
            if let Some(pid) = server.and_then(|pid| pid.parse().ok()) {
                self.server = pid;
                return Ok(at);
            }
            log += &(line + "\n");
        }
    }

    fn command(&self, session: &str) -> Result<Ran> {
        child::run(&mut (self.control)(), session, STEP)
    }

    /// `quit`, then waits until daemon and server are gone. Returns how long that took.
    pub fn quit(mut self) -> Result<Duration> {
        let begin = Instant::now();
        let _ = self.command("quit\n")?;
        let Some(mut child) = self.child.take() else {
            bail!("the daemon was already collected")
        };
        let deadline = begin + STEP;
        while child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                self.child = Some(child);
                bail!("the daemon is still there {} s after quit", STEP.as_secs());
            }
            thread::sleep(Duration::from_micros(500));
        }
        child::until(STEP, Duration::from_millis(1), || {
            !child::alive(self.server)
        })?;
        Ok(begin.elapsed())
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Its server dies with it (recorded); the child is not yet reaped, so the pid is its
            // own.
            let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn read_lines(reader: std::io::PipeReader) -> Receiver<(String, Instant)> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(reader).lines().map_while(Result::ok) {
            if sender.send((line, Instant::now())).is_err() {
                return;
            }
        }
    });
    receiver
}
