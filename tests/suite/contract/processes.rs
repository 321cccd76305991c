//! Child processes as an ordinary user, each in a process group of its own.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tests::child;

pub const USER: u32 = 54_321;
pub const STRANGER: u32 = 54_322;
#[derive(Debug)]
pub struct Ended {
    pub out: String,
    pub err: String,
    pub hung: bool,
    pub took: Duration,
    code: Option<i32>,
}

impl Ended {
    /// Its exit code; -1 if a signal or the deadline ended it.
    pub fn code(&self) -> i32 {
        self.code.unwrap_or(-1)
    }

    #[track_caller]
    pub fn answers(&self, answer: &str) {
        assert_eq!((self.out.as_str(), self.code()), (answer, 0), "{self:?}");
    }
}

#[derive(Debug)]
pub struct Running {
    child: Option<child::Running>,
    group: Pid,
    begin: Instant,
}

/// With nothing of the environment but `env` and a PATH for util-linux.
pub fn command(program: impl AsRef<OsStr>, uid: u32, env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program);
    command.env_clear().current_dir("/").process_group(0);
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    if let Ok(libraries) = std::env::var("LD_LIBRARY_PATH") {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    command.envs(env.iter().copied());
    if uid != 0 {
        command.uid(uid).gid(uid);
    }
    command
}

pub fn spawn(mut command: Command, input: &str) -> Running {
    let begin = Instant::now();
    let child = child::Running::start(&mut command, input);
    let child = child.unwrap_or_else(|why| panic!("{why:#}"));
    Running {
        group: Pid::from_raw(child.pid().cast_signed()),
        child: Some(child),
        begin,
    }
}

pub fn run(command: Command, input: &str, limit: Duration) -> Ended {
    spawn(command, input).finish(limit)
}

impl Running {
    fn child(&mut self) -> &mut child::Running {
        self.child.as_mut().expect("it was not finished")
    }
    pub fn pid(&self) -> u32 {
        self.group.as_raw().cast_unsigned()
    }

    pub fn written(&self) -> [String; 2] {
        let child = self.child.as_ref().expect("it was not finished");
        [child.stdout_so_far(), child.stderr_so_far()]
    }
    pub fn signal(&self, signal: Signal) {
        nix::sys::signal::kill(self.group, signal).expect("the child is not reaped yet");
    }

    pub fn ended_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        self.child().ended_within(limit)
    }

    pub fn finish(mut self, limit: Duration) -> Ended {
        let hung = self.ended_within(limit).is_none();
        let [out, err] = self.written();
        let so_far = Ended {
            out,
            err,
            hung,
            took: self.begin.elapsed(),
            code: None,
        };
        let ended = self.child.take().filter(|_| !hung);
        let Some(Ok(ran)) = ended.map(|child| child.finish(limit)) else {
            return so_far;
        };
        Ended {
            out: ran.stdout,
            err: ran.stderr,
            hung,
            took: ran.wall,
            code: ran.code,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = killpg(self.group, Signal::SIGKILL);
    }
}
