//! A job of Torque on the real GPU: `mps-prologue` and `mps-epilogue` as its mom runs them, and its
//! clients.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use ::tests::child::{self, Ran, Running};
use anyhow::{Context, Result};
use serde_json::Value;

use crate::runner::PROGRAM;
use crate::site::{self, BEFORE, Place, Run};

/// The user's request of the job with limits; the numbers are [`PERCENT`] and [`MEMORY_MIB`].
pub const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=4G";
pub const PERCENT: f64 = 25.0;
pub const MEMORY_MIB: u64 = 4096;
pub const PLAIN: &str = "MPS=true";

#[derive(Clone, Copy)]
pub struct Order {
    pub id: &'static str,
    pub account: &'static str,
    pub settings: &'static str,
    pub all_gpus: bool,
    /// Its tasks, as Torque tells them in the environment; zero: not told.
    pub tasks: u32,
}

impl Order {
    pub const fn new(id: &'static str, account: &'static str) -> Self {
        Self {
            id,
            account,
            settings: "",
            all_gpus: false,
            tasks: 0,
        }
    }
}

#[derive(Debug)]
pub struct Job<'a> {
    place: &'a Place,
    pub id: String,
    account: String,
    gpus: String,
    nodes: String,
    group: String,
    config: PathBuf,
    pub before: bool,
    tasks: u32,
    open: Cell<bool>,
}

impl<'a> Job<'a> {
    pub fn new(place: &'a Place, id: &str, account: &str, gpus: &[&str]) -> Result<Self> {
        let group = users::get_group_by_gid(place.user.gid.as_raw());
        let group = group.context("the user's group has no name")?;
        Ok(Self {
            place,
            id: id.into(),
            account: account.into(),
            gpus: gpus.join(","),
            nodes: format!("nodes=1:gpus={}", gpus.len()),
            group: group.name().to_string_lossy().into_owned(),
            config: configure(place, "")?,
            before: false,
            tasks: 0,
            open: false.into(),
        })
    }

    pub fn of(run: &'a Run, order: &Order) -> Result<Self> {
        let gpus = if order.all_gpus {
            &run.gpus[..]
        } else {
            std::slice::from_ref(run.gpu())
        };
        let gpus: Vec<&str> = gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        let mut job = Self::new(&run.place, order.id, order.account, &gpus)?;
        if order.tasks > 0 {
            job.nodes = format!("nodes=1:ppn={}:gpus=1", order.tasks);
            job.tasks = order.tasks;
        }
        job.under(order.settings)
    }

    pub fn under(mut self, settings: &str) -> Result<Self> {
        if !settings.is_empty() {
            let text = fs::read_to_string(&self.config)?;
            self.config = self.place.dir.join("etc").join(format!("{}.toml", self.id));
            fs::write(&self.config, text + settings)?;
        }
        Ok(self)
    }

    /// Runs `mps-prologue` as the mom does: as root, with Torque's recorded arguments.
    pub fn prologue(&self) -> Result<Ran> {
        self.open.set(true);
        let mut command = self.program("mps-prologue")?;
        command.args(["--gpus", &self.gpus, &self.id, &self.place.user.name]);
        command.args([&self.group, "job1", &self.nodes, "batch", &self.account]);
        child::run(&mut command, "", PROGRAM)
    }

    pub fn epilogue(&self) -> Result<Ran> {
        let mut command = self.program("mps-epilogue")?;
        let used = "cput=00:00:01,mem=0kb,vmem=0kb,walltime=00:00:02";
        command.args([&self.id, &self.place.user.name, &self.group, "job1", "4242"]);
        command.args([&self.nodes, used, "batch", &self.account, "0"]);
        let ran = child::run(&mut command, "", PROGRAM)?;
        self.open.set(false);
        Ok(ran)
    }

    fn program(&self, name: &str) -> Result<Command> {
        let before = format!("{BEFORE}/{name}");
        let name = if self.before { &before } else { name };
        let mut command = Command::new(self.place.staged(name)?);
        command.env_clear().current_dir("/");
        command
            .args(["--scheduler", "torque", "--config"])
            .arg(&self.config);
        if self.tasks > 0 {
            command.env("PBS_NUM_NODES", "1");
            command.env("PBS_NUM_PPN", self.tasks.to_string());
        }
        Ok(command)
    }

    /// What `mpsctl env` gives a task of the job.
    pub fn environment(&self) -> Result<BTreeMap<String, String>> {
        let mut env = site::base_env();
        env.insert("PBS_JOBID".into(), self.id.clone());
        let mut command = self.user_mpsctl(env.clone())?;
        command.args(["env", "--shell", "json", "--job", &self.id]);
        let ran = child::run(&mut command, "", PROGRAM)?.success()?;
        let changes: BTreeMap<String, Option<String>> = serde_json::from_str(&ran.stdout)
            .with_context(|| format!("mpsctl env wrote {}", ran.stdout))?;
        for (name, value) in changes {
            match value {
                Some(value) => env.insert(name, value),
                None => env.remove(&name),
            };
        }
        Ok(env)
    }

    /// `mpsctl` as the user in a task of the job. Its environment has only `env` and the job's id.
    pub fn user_mpsctl(&self, mut env: BTreeMap<String, String>) -> Result<Command> {
        env.insert("PBS_JOBID".into(), self.id.clone());
        let mut command = self.place.as_user(&self.place.staged("mpsctl")?, &env);
        command.arg("--config").arg(&self.config);
        Ok(command)
    }

    pub fn load(&self, count: usize, options: &str) -> Result<Vec<Running>> {
        let env = self.environment()?;
        let program = self.place.staged("cuda-load")?;
        let start = |_| {
            let mut command = self.place.as_user(&program, &env);
            command.args(options.split(' '));
            Running::start(&mut command, "")
        };
        (0..count).map(start).collect()
    }

    /// What NVIDIA's daemon answers one of its clients.
    pub fn ask(&self, question: &str) -> Result<String> {
        let control = site::program("nvidia-cuda-mps-control")?;
        let mut command = self.place.as_user(&control, &self.environment()?);
        let ran = child::run(&mut command, &format!("{question}\n"), PROGRAM)?;
        Ok(ran.success()?.stdout.trim().to_owned())
    }

    pub fn mpsd_pid(&self) -> Result<i64> {
        let directory = self.place.run.join("mpsd/jobs").join(&self.id);
        let journal = fs::read_to_string(directory.join("journal"))?;
        let journal: Value = serde_json::from_str(&journal)?;
        let pid = journal["supervisor"]["pid"].as_i64();
        pid.context("no mpsd in the journal")
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        if self.open.get() {
            let _ = self.epilogue();
        }
    }
}

/// Writes a new configuration, with these lines after the usual ones.
pub fn configure(place: &Place, more: &str) -> Result<PathBuf> {
    let file = place.dir.join("etc/mpsd.toml");
    let text = format!(
        "run_dir = \"{}\"\nstate_dir = \"{}\"\ncontrol = \"{}\"\nnvml = \"{}\"\ncompute_mode = \"keep\"\n{more}",
        place.run.join("mpsd").display(),
        place.dir.join("state").display(),
        site::program("nvidia-cuda-mps-control")?.display(),
        site::nvml()?.display(),
    );
    fs::write(&file, text)?;
    Ok(file)
}
