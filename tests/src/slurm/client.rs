//! Slurm's commands as an ordinary user, each with a deadline.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::look::Process;
use super::users::User;
use super::warden::{Request, Warden};
use crate::child::Drain;

/// What a command did.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The command line, for messages.
    pub command: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// How long it took.
    pub wall: Duration,
}

impl Finished {
    /// Itself if it exited with 0, else an error that shows everything it said.
    pub fn success(self) -> Result<Finished> {
        if self.status.success() {
            return Ok(self);
        }
        bail!(
            "'{}' failed ({}):\n{}{}",
            self.command,
            self.status,
            self.stdout,
            self.stderr
        )
    }

    /// Itself if it failed with `code`.
    pub fn exits(self, code: i32) -> Result<Finished> {
        if self.status.code() == Some(code) {
            return Ok(self);
        }
        bail!(
            "'{}' should exit {code} ({}):\n{}{}",
            self.command,
            self.status,
            self.stdout,
            self.stderr
        )
    }
}

/// A command that runs: collects what it says. Ends the command when dropped.
#[derive(Debug)]
pub struct Client {
    command: String,
    child: Child,
    started: Instant,
    output: [Drain; 2],
}

impl Client {
    /// Starts `argv` as `user` with exactly `env`, in `dir`.
    pub(super) fn start(
        warden: &Warden,
        user: &User,
        argv: &[&str],
        env: &BTreeMap<String, String>,
        dir: &Path,
    ) -> Result<Client> {
        let program = argv.first().context("empty command")?;
        let mut command = Command::new(program);
        command
            .args(&argv[1..])
            .env_clear()
            .envs(env)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if user.uid != 0 {
            command.uid(user.uid).gid(user.gid);
        }
        let started = Instant::now();
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start '{program}' as '{}'", user.name))?;
        let output = [
            Drain::start(child.stdout.take()),
            Drain::start(child.stderr.take()),
        ];
        let client = Client {
            command: argv.join(" "),
            child,
            started,
            output,
        };
        if let Some(process) = Process::read(client.pid()) {
            warden.ask(&Request::Client {
                pid: process.pid,
                start: process.start,
            })?;
        }
        Ok(client)
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Sends it a signal, as Ctrl-C would.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.pid()), signal)?)
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits at most `limit` for its end. A command that takes longer is killed, and that is an error.
    pub fn wait(mut self, limit: Duration) -> Result<Finished> {
        let deadline = self.started + limit;
        let mut pause = Duration::from_micros(200);
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                self.child.kill()?;
                self.child.wait()?;
                let [stdout, stderr] = self.said();
                bail!(
                    "'{}' took longer than {} s:\n{stdout}{stderr}",
                    self.command,
                    limit.as_secs()
                );
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        };
        let wall = self.started.elapsed();
        let [stdout, stderr] = self.said();
        Ok(Finished {
            command: std::mem::take(&mut self.command),
            status,
            stdout,
            stderr,
            wall,
        })
    }

    fn said(&self) -> [String; 2] {
        // A moment for the end, but not for a stranger who keeps the pipe open.
        self.output.each_ref().map(|drain| {
            drain.wait(Duration::from_secs(2));
            drain.so_far()
        })
    }
}

/// See [`super::Bed::time`]. The wait blocks in a thread of its own, so that no polling shows in the figure.
pub(super) fn time(
    user: &User,
    argv: &[&str],
    env: &BTreeMap<String, String>,
    dir: &Path,
    limit: Duration,
) -> Result<Duration> {
    let mut command = Command::new(argv[0]);
    command.args(&argv[1..]).env_clear().envs(env).current_dir(dir);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if user.uid != 0 {
        command.uid(user.uid).gid(user.gid);
    }
    let started = Instant::now();
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start '{}'", argv[0]))?;
    let pid = Pid::from_raw(child.id().cast_signed());
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let status = child.wait();
        // Nobody listens once the limit is over.
        let _ = sender.send((started.elapsed(), status));
    });
    match receiver.recv_timeout(limit) {
        Ok((wall, Ok(status))) if status.success() => Ok(wall),
        Ok((_, status)) => bail!("'{}' failed: {status:?}", argv.join(" ")),
        Err(_) => {
            let _ = kill(pid, Signal::SIGKILL);
            bail!("'{}' took longer than {} s", argv.join(" "), limit.as_secs())
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
