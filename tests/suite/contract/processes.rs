//! Child processes as an ordinary user, each in a process group of its own.

use std::ffi::OsStr;
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tests::child::{self, Ran};
use tests::node_bed::send;

pub const USER: u32 = 54_321;
pub const STRANGER: u32 = 54_322;

#[derive(Debug)]
struct Group(u32);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(self.0.cast_signed()), Signal::SIGKILL);
    }
}

#[derive(Debug)]
pub struct Running {
    _group: Group,
    child: child::Running,
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
    let child = child::Running::start(&mut command, input);
    let child = child.unwrap_or_else(|why| panic!("{why:#}"));
    Running {
        _group: Group(child.pid()),
        child,
    }
}

pub fn run(command: Command, input: &str, limit: Duration) -> Ran {
    spawn(command, input).finish(limit)
}

impl Running {
    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal).expect("the child is not reaped yet");
    }

    /// If it hangs it is killed, and its end is not known.
    pub fn finish(mut self, limit: Duration) -> Ran {
        if self.ended_within(limit).is_none() {
            return self.so_far();
        }
        let ran = self.child.finish(limit);
        ran.unwrap_or_else(|why| panic!("{why:#}"))
    }
}

impl Deref for Running {
    type Target = child::Running;

    fn deref(&self) -> &child::Running {
        &self.child
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut child::Running {
        &mut self.child
    }
}
