//! `mpsctl env` and `mpsctl exec`: the job's MPS for shells, launchers and tasks that no plugin or hook reaches.

use super::common::CONFIG;
use crate::config::{Config, Settings};
use crate::model::environment::{
    Change, JOB, LOCAL_RANKS, Task, VISIBLE_DEVICES, strip_inherited, task_environment,
};
use crate::model::record::{LONGEST, Record, State};
use crate::model::{JobId, Refusal};
use crate::scheduler::{Host, ThisHost};
use crate::sys::deadline::Deadline;
use crate::sys::trusted::open_trusted;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// How often a record that stands at `starting` is read again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Shells that Torque starts as login shells where it has no `$job_starter`.
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish"];

/// A variable of the caller's environment.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Which job, and where its files are.
#[derive(Debug, Clone, clap::Args)]
pub struct Which {
    /// The job; from the scheduler's variables if not given
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    pub config: PathBuf,
}

/// `mpsctl env`.
#[derive(Debug, Clone, clap::Args)]
pub struct Env {
    /// Which job
    #[command(flatten)]
    pub which: Which,
    /// For whom to print
    #[arg(long, value_enum, default_value = "sh")]
    pub shell: Shell,
    /// This is the job's main shell, which has no rank: leave what needs one to 'mpsctl exec'
    #[arg(long)]
    pub main: bool,
}

/// How variables are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Shell {
    /// sh, bash, zsh, ksh
    Sh,
    /// csh, tcsh
    Csh,
    /// One object: "set", "unset"
    Json,
}

/// `mpsctl exec`.
#[derive(Debug, Clone, clap::Args)]
pub struct Exec {
    /// Which job
    #[command(flatten)]
    pub which: Which,
    /// Torque's $job_starter: a job without MPS runs as it is, a lone shell becomes a login shell
    #[arg(long)]
    pub starter: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl Env {
    /// The text to print. Empty (in JSON: without changes) outside a job and in a job without MPS.
    ///
    /// # Errors
    /// The job's MPS was refused or failed, or this process cannot be told its part of it.
    pub fn run(&self, env: Lookup<'_>) -> Result<String, Refusal> {
        let changes = match found(&self.which, env)? {
            Some(record) => changes(&record, env, self.main)?,
            None => leftovers(&self.which, env),
        };
        Ok(self.shell.write(&changes))
    }
}

impl Exec {
    /// Turns this process into the command; returns only when that cannot be done.
    ///
    /// # Errors
    /// The job has no MPS here, or it was refused or failed, or the command cannot be run.
    pub fn run(&self, env: Lookup<'_>) -> Result<std::convert::Infallible, Refusal> {
        let login = self.starter && self.lone_shell().is_some();
        let changes = match found(&self.which, env)? {
            Some(record) => changes(&record, env, login)?,
            None if self.starter => Vec::new(),
            None => return Err(no_mps(&self.which, env)),
        };
        let (program, arguments) = self.command.split_first().ok_or_else(|| Refusal::new("mpsctl exec", "no command", ""))?;
        let mut command = Command::new(program);
        command.args(arguments);
        if let (true, Some(name)) = (login, self.lone_shell()) {
            command.arg0(format!("-{name}"));
        }
        for change in changes {
            match change.value {
                Some(value) => command.env(change.name, value),
                None => command.env_remove(change.name),
            };
        }
        let error = command.exec();
        Err(Refusal::new(format!("'{}'", program.to_string_lossy()), error.to_string(), ""))
    }

    /// The name of the shell, when the command is a shell and nothing else.
    fn lone_shell(&self) -> Option<String> {
        let [only] = self.command.as_slice() else { return None };
        let name = std::path::Path::new(only).file_name()?.to_str()?;
        SHELLS.contains(&name).then(|| name.to_owned())
    }
}

/// The ids under which the job may have a record, most special first: a Slurm step with a daemon of its own goes
/// before its job.
fn ids(which: &Which, env: Lookup<'_>) -> Result<Vec<JobId>, Refusal> {
    let var = |name: &str| env(name).filter(|value| !value.is_empty());
    if let Some(id) = which.job.clone().or_else(|| var("PBS_JOBID")) {
        return Ok(vec![JobId::parse(&id)?]);
    }
    let Some(job) = var("SLURM_JOB_ID") else { return Ok(Vec::new()) };
    let job = JobId::parse(&job)?;
    let step = var("SLURM_STEP_ID").and_then(|step| job.step(&step).ok());
    Ok(step.into_iter().chain([job]).collect())
}

fn settings(which: &Which, env: Lookup<'_>) -> Settings {
    let node = env("SLURMD_NODENAME").filter(|n| !n.is_empty()).unwrap_or_else(|| ThisHost.name());
    // An unreadable configuration is the prologue's to report; the usual directories are looked into.
    let read = Config::load(&which.config).and_then(|config| config.for_node(&node, &[]));
    read.unwrap_or_else(|_| Settings::usual(&node))
}

/// The record of the job, once it no longer stands at `starting`; `None`: no MPS here.
fn found(which: &Which, env: Lookup<'_>) -> Result<Option<Record>, Refusal> {
    let ids = ids(which, env)?;
    if ids.is_empty() {
        return Ok(None);
    }
    let paths = settings(which, env).paths;
    for id in ids {
        let path = paths.job(&id).record();
        let Some(mut record) = read(&path)? else { continue };
        let deadline = Deadline::after(Duration::from_secs(record.deadline_s.into()));
        while record.state == State::Starting && deadline.sleep(LOOK_AGAIN) {
            match read(&path)? {
                Some(newer) => record = newer,
                None => return Ok(None),
            }
        }
        return Ok(Some(record));
    }
    Ok(None)
}

fn read(path: &std::path::Path) -> Result<Option<Record>, Refusal> {
    let unreadable = |why: String| Refusal::new(format!("record '{}'", path.display()), why, "");
    let file = match open_trusted(path) {
        Ok(file) => file,
        Err(error) if error.is_absent() => return Ok(None),
        Err(error) => return Err(unreadable(error.to_string())),
    };
    let most = usize::try_from(LONGEST).unwrap_or(usize::MAX);
    let bytes = file.read(most).map_err(|e| unreadable(e.to_string()))?;
    Record::parse(&String::from_utf8_lossy(&bytes)).map(Some).map_err(unreadable)
}

fn changes(record: &Record, env: Lookup<'_>, main: bool) -> Result<Vec<Change>, Refusal> {
    let job = format!("job {}", record.job);
    let reason = || record.reason.clone().unwrap_or_else(|| "no reason was left".to_owned());
    match record.state {
        State::Ready => {}
        State::Starting => return Err(Refusal::new(job, "its MPS is not ready in time", "")),
        State::Refused => return Err(Refusal::new(job, format!("MPS refused: {}", reason()), "")),
        State::Failed => return Err(Refusal::new(job, format!("MPS did not start: {}", reason()), "")),
    }
    let number = |name: &&str| env(name).and_then(|rank| rank.trim().parse().ok());
    let task = Task {
        local_rank: LOCAL_RANKS.iter().find_map(number),
        visible: env(VISIBLE_DEVICES),
        renumbered: None,
        inherited_job: env(JOB),
    };
    if main && task.local_rank.is_none() { main_shell(record, &task) } else { task_environment(record, &task) }
}

/// What a shell can have before its ranks are known: all but what depends on the rank. In per-gpu mode that is the
/// daemon itself, unless the job has one GPU.
fn main_shell(record: &Record, task: &Task) -> Result<Vec<Change>, Refusal> {
    let shared = Record { rank_threads: Vec::new(), rank_memory: Vec::new(), ..record.clone() };
    match task_environment(&shared, task) {
        Err(_) if record.per_gpu && record.gpus.len() > 1 => {
            let mut changes = vec![Change { name: JOB, value: Some(record.job.as_str().to_owned()) }];
            if record.uuids {
                let all: Vec<&str> = record.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
                changes.push(Change { name: VISIBLE_DEVICES, value: Some(all.join(",")) });
            }
            Ok(changes)
        }
        other => other,
    }
}

/// In a job without MPS: what `qsub -V` brought from a job that had it.
fn leftovers(which: &Which, env: Lookup<'_>) -> Vec<Change> {
    let this = ids(which, env).ok().and_then(|ids| ids.last().map(|id| id.as_str().to_owned()));
    if this.is_none() || env(JOB).is_none() {
        return Vec::new();
    }
    strip_inherited(&settings(which, env).paths.jobs(), this.as_deref(), env)
}

fn no_mps(which: &Which, env: Lookup<'_>) -> Refusal {
    match ids(which, env).ok().and_then(|ids| ids.last().cloned()) {
        Some(job) => Refusal::new(format!("job {job}"), "it has no MPS on this node", "-A MPS=true at submission"),
        None => Refusal::new("mpsctl exec", "this is no job: PBS_JOBID and SLURM_JOB_ID are not set", "--job ID"),
    }
}

impl Shell {
    fn write(self, changes: &[Change]) -> String {
        let quoted = |value: &str| format!("'{}'", value.replace('\'', "'\\''"));
        match self {
            Self::Sh => changes
                .iter()
                .map(|change| match &change.value {
                    Some(value) => format!("export {}={}\n", change.name, quoted(value)),
                    None => format!("unset {}\n", change.name),
                })
                .collect(),
            // csh substitutes history even between single quotes.
            Self::Csh => changes
                .iter()
                .map(|change| match &change.value {
                    Some(value) => format!("setenv {} {};\n", change.name, quoted(value).replace('!', "\\!")),
                    None => format!("unsetenv {};\n", change.name),
                })
                .collect(),
            Self::Json => {
                let set: serde_json::Map<String, serde_json::Value> = changes
                    .iter()
                    .filter_map(|c| Some((c.name.to_owned(), c.value.clone()?.into())))
                    .collect();
                let unset: Vec<&str> = changes.iter().filter(|c| c.value.is_none()).map(|c| c.name).collect();
                format!("{}\n", serde_json::json!({ "set": set, "unset": unset }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes() -> Vec<Change> {
        let set = Change { name: JOB, value: Some("it's 4!".to_owned()) };
        vec![set, Change { name: VISIBLE_DEVICES, value: None }]
    }

    #[test]
    fn every_shell_reads_what_is_printed_for_it() {
        assert_eq!(Shell::Sh.write(&changes()), "export MPSD_JOB='it'\\''s 4!'\nunset CUDA_VISIBLE_DEVICES\n");
        assert_eq!(
            Shell::Csh.write(&changes()),
            "setenv MPSD_JOB 'it'\\''s 4\\!';\nunsetenv CUDA_VISIBLE_DEVICES;\n"
        );
        assert_eq!(
            Shell::Json.write(&changes()),
            "{\"set\":{\"MPSD_JOB\":\"it's 4!\"},\"unset\":[\"CUDA_VISIBLE_DEVICES\"]}\n"
        );
        assert_eq!(Shell::Sh.write(&[]), "");
    }

    #[test]
    fn outside_a_job_nothing_is_printed_and_exec_says_why() {
        let which = Which { job: None, config: "/nonexistent".into() };
        let env = Env { which: which.clone(), shell: Shell::Sh, main: false };
        assert_eq!(env.run(&|_| None), Ok(String::new()));
        let exec = Exec { which, starter: false, command: vec!["true".into()] };
        assert!(exec.run(&|_| None).unwrap_err().to_string().contains("PBS_JOBID and SLURM_JOB_ID are not set"));
    }

    #[test]
    fn only_a_lone_shell_becomes_a_login_shell() {
        let which = Which { job: None, config: "/nonexistent".into() };
        let shell = |words: &[&str]| {
            let command = words.iter().map(OsString::from).collect();
            Exec { which: which.clone(), starter: true, command }.lone_shell()
        };
        assert_eq!(shell(&["/bin/bash"]).as_deref(), Some("bash"));
        assert_eq!(shell(&["/bin/bash", "x"]), None);
        assert_eq!(shell(&["/usr/bin/python3"]), None);
    }
}
