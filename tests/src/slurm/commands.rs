//! Slurm's commands on a bed: which user runs them, with which environment, each with a deadline.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;

use super::bed::Bed;
use super::host::{program, search_path};
use super::users::User;
use super::warden::{Request, Warden};
use crate::child::{Ran, Running};
use crate::double::look::{Process, alive, process};
use crate::node_bed::send;

const COMMAND: Duration = Duration::from_secs(30);

impl Bed {
    pub(super) fn slurm_conf(&self) -> String {
        self.dir.join("etc/slurm.conf").display().to_string()
    }

    /// Without the plugin: for `plain_nodes`, and for commands that must not load it.
    pub fn plain_conf(&self) -> String {
        self.dir.join("etc/slurm-plain.conf").display().to_string()
    }

    /// On a cluster without files, the copy that the first node got from the controller.
    fn client_conf(&self) -> String {
        let copy = format!("spool/{}/conf-cache/slurm.conf", self.options.node(1));
        let copy = self.dir.join(copy);
        match self.options.configless && copy.exists() {
            true => copy.display().to_string(),
            false => self.slurm_conf(),
        }
    }

    pub fn environment(&self, user: &User) -> BTreeMap<String, String> {
        [
            ("SLURM_CONF", self.client_conf()),
            ("PATH", search_path()),
            ("HOME", self.home(user).display().to_string()),
            ("USER", user.name.clone()),
            ("LC_ALL", "C".to_owned()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }

    pub fn spawn(&self, user: &User, argv: &[&str]) -> Result<Client> {
        self.spawn_with(user, argv, &[])
    }

    pub fn spawn_with(&self, user: &User, argv: &[&str], extra: &[(&str, &str)]) -> Result<Client> {
        let mut env = self.environment(user);
        let extra = extra
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string()));
        env.extend(extra);
        let found;
        let mut argv = argv.to_vec();
        if let Some(name) = argv.first_mut()
            && !name.contains('/')
        {
            found = program(&[name])?;
            *name = &found;
        }
        Client::start(&self.warden, user, &argv, &env, &self.home(user))
    }

    /// From fork to exit. An error if it fails.
    pub fn time(
        &self,
        user: &User,
        argv: &[&str],
        extra: &[(&str, &str)],
        limit: Duration,
    ) -> Result<Duration> {
        let ran = self.spawn_with(user, argv, extra)?.wait(limit)?;
        Ok(ran.success()?.wall)
    }

    pub fn srun(&self, user: &User, arguments: &[&str], limit: Duration) -> Result<Ran> {
        let client = self.spawn(user, &[&["srun"], arguments].concat())?;
        client.wait(limit)
    }

    /// Returns the job's id. The output is in `job-ID.out` in the user's directory.
    pub fn sbatch(&self, user: &User, arguments: &[&str], script: &str) -> Result<u32> {
        let file = tempfile::NamedTempFile::new_in(self.home(user))?;
        let shell = match script.starts_with("#!") {
            true => "",
            false => "#!/bin/sh\n",
        };
        fs::write(file.path(), format!("{shell}{script}\n"))?;
        chown(file.path(), Some(user.uid), Some(user.gid))?;
        let path = file.path().display().to_string();
        let before = ["sbatch", "--parsable", "--output=job-%j.out"];
        let argv = [&before, arguments, &[&path]].concat();
        let finished = self.spawn(user, &argv)?.wait(COMMAND)?.success()?;
        let id = finished.stdout.trim();
        id.parse().with_context(|| format!("sbatch said '{id}'"))
    }

    pub fn output(&self, user: &User, job: u32) -> String {
        fs::read_to_string(self.home(user).join(format!("job-{job}.out"))).unwrap_or_default()
    }

    pub fn root(&self, argv: &[&str]) -> Result<Ran> {
        self.spawn(&User::root(), argv)?.wait(COMMAND)
    }

    /// Split at blanks. It must succeed.
    pub fn said(&self, command: &str) -> Result<String> {
        let words: Vec<&str> = command.split_whitespace().collect();
        Ok(self.root(&words)?.success()?.stdout)
    }
}

#[derive(Debug)]
pub struct Client(Running);

impl Client {
    fn start(
        warden: &Warden,
        user: &User,
        argv: &[&str],
        env: &BTreeMap<String, String>,
        dir: &Path,
    ) -> Result<Client> {
        let (program, arguments) = argv.split_first().context("empty command")?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(env);
        command.current_dir(dir);
        if user.uid != 0 {
            command.uid(user.uid).gid(user.gid);
        }
        let client = Client(Running::start(&mut command, "")?);
        if let Some(Process { pid, start, .. }) = process(client.pid()) {
            warden.tell(&Request::Client { pid, start })?;
        }
        Ok(client)
    }

    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(send(self.pid(), signal)?)
    }

    pub fn runs(&self) -> bool {
        alive(self.0.pid())
    }

    /// At most `limit` after its start, when it is killed; that is an error.
    pub fn wait(self, limit: Duration) -> Result<Ran> {
        self.0.finish(limit)
    }
}
