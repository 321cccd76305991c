//! Child processes with a deadline, as an ordinary user.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tests::double::look::wait_until;

/// The user whose daemon it is.
pub const USER: u32 = 54_321;
/// Another user.
pub const STRANGER: u32 = 54_322;

/// How a child ended.
#[derive(Debug)]
pub struct Ended {
    /// What it wrote to standard output.
    pub out: String,
    /// What it wrote to standard error.
    pub err: String,
    /// Its status; none if it had to be killed at the deadline.
    pub status: Option<ExitStatus>,
    /// How long it took.
    pub took: Duration,
}

impl Ended {
    /// Its exit code; -1 if a signal or the deadline ended it.
    pub fn code(&self) -> i32 {
        self.status.and_then(|s| s.code()).unwrap_or(-1)
    }

    /// Whether it had to be killed at the deadline.
    pub fn hung(&self) -> bool {
        self.status.is_none()
    }
}

/// A running child in a process group of its own; killed with its whole group when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    out: PathBuf,
    err: PathBuf,
    begin: Instant,
}

/// A command that runs as this user, with nothing of the environment but `env` and a PATH for util-linux.
pub fn command(program: impl AsRef<OsStr>, uid: u32, env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir("/")
        .process_group(0);
    if let Ok(libraries) = std::env::var("LD_LIBRARY_PATH") {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    command.envs(env.iter().copied());
    if uid != 0 {
        command.uid(uid).gid(uid);
    }
    command
}

/// Starts a command whose standard input is this text and whose output goes to files in `dir`.
pub fn spawn(mut command: Command, input: &str, dir: &Path) -> Running {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = |what: &str| dir.join(format!("{what}.{number}"));
    let (text, out, err) = (name("in"), name("out"), name("err"));
    std::fs::write(&text, input).expect("the test's directory takes files");
    let create = |path: &Path| File::create(path).expect("the test's directory takes files");
    let begin = Instant::now();
    let child = command
        .stdin(File::open(&text).expect("just written"))
        .stdout(Stdio::from(create(&out)))
        .stderr(Stdio::from(create(&err)))
        .spawn()
        .unwrap_or_else(|why| panic!("cannot start {command:?}: {why}"));
    Running {
        child,
        out,
        err,
        begin,
    }
}

/// Runs a command to its end, or kills it at the deadline.
pub fn run(command: Command, input: &str, dir: &Path, limit: Duration) -> Ended {
    spawn(command, input, dir).finish(limit)
}

impl Running {
    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to standard output so far.
    pub fn out(&self) -> String {
        std::fs::read_to_string(&self.out).unwrap_or_default()
    }

    /// What it has written to standard error so far.
    pub fn err(&self) -> String {
        std::fs::read_to_string(&self.err).unwrap_or_default()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        nix::sys::signal::kill(Pid::from_raw(self.pid() as i32), signal)
            .expect("the child is not reaped yet");
    }

    /// Its status if it ends within this time.
    pub fn ended_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let mut status = None;
        wait_until(limit, || {
            status = self.child.try_wait().expect("it is our child");
            status.is_some()
        });
        status
    }

    /// Waits for its end; kills it at the deadline.
    pub fn finish(mut self, limit: Duration) -> Ended {
        let status = self.ended_within(limit);
        let took = self.begin.elapsed();
        Ended {
            out: self.out(),
            err: self.err(),
            status,
            took,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(self.pid() as i32), Signal::SIGKILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
