//! Slurm's commands as a user of the cluster runs them, each with a deadline.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::look::Process;
use super::users::User;
use super::warden::{Request, Warden};
use crate::child::{Ran, Running, alive};

/// A command that runs. Dropping it ends the command.
#[derive(Debug)]
pub struct Client(Running);

impl Client {
    /// Starts `argv` as `user` with exactly `env`, in `dir`.
    pub(super) fn start(
        warden: &Warden,
        user: &User,
        argv: &[&str],
        env: &BTreeMap<String, String>,
        dir: &Path,
    ) -> Result<Client> {
        let (program, arguments) = argv.split_first().context("empty command")?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(env).current_dir(dir);
        if user.uid != 0 {
            command.uid(user.uid).gid(user.gid);
        }
        let client = Client(Running::start(&mut command, "")?);
        if let Some(Process { pid, start, .. }) = Process::read(client.pid()) {
            warden.ask(&Request::Client { pid, start })?;
        }
        Ok(client)
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.0.pid().cast_signed()
    }

    /// Sends it a signal, as Ctrl-C would.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.pid()), signal)?)
    }

    /// Whether it still runs.
    pub fn runs(&self) -> bool {
        alive(self.0.pid())
    }

    /// Waits for its end, at most `limit` from its start. A command that takes longer is killed, and that is an error.
    pub fn wait(self, limit: Duration) -> Result<Ran> {
        self.0.finish(limit)
    }
}
