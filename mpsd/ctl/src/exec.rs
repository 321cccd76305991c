//! `mpsctl exec -- COMMAND`: a task attached to its job's MPS, with its rank's limits, if no plugin
//! or hook does that.

use super::attach::{Attachment, Caller, NO_JOB};
use super::{NAME, complain};
use batch::{Host, Location, Lookup, ThisHost, may_run_as_root};
use mpsd_core::config::Settings;
use mpsd_core::{Failure, Refusal};
use setup::VerbError;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Shells that Torque starts as login shells without a `$job_starter`, besides the user's own.
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish"];
/// Programs that MPI's launchers start on a job's other nodes: only their children have ranks.
const LAUNCHERS: [&str; 5] = [
    "orted",
    "prted",
    "hydra_pmi_proxy",
    "hydra_bstrap_proxy",
    "pmi_proxy",
];
/// What a user who sets a variable MPS must have meant, and the line about it.
const REQUESTS: [&str; 6] = ["true", "on", "auto", "per-node", "per-gpu", "own"];
const NO_REQUEST: &str =
    "the variable MPS of this job (qsub -v, -V) asks for no MPS; allowed: qsub -A MPS=on";

#[derive(Debug, Clone, clap::Args)]
pub struct Exec {
    /// The job; from the scheduler's variables if not given
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// Torque's $job_starter: a job without MPS runs as it is, a lone shell becomes a login shell
    #[arg(long)]
    pub starter: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl Exec {
    /// Whether the command is the job's main shell or an MPI launcher's daemon: its ranks start
    /// later.
    pub fn is_main(&self, env: Lookup<'_>) -> bool {
        let name = Path::new(&self.command[0]).file_name();
        let launcher = LAUNCHERS.iter().any(|known| name == Some(known.as_ref()));
        self.starter && (launcher || self.lone_shell(env).is_some())
    }

    /// Turns this process into the command; returns only on failure. It is the user's command, so
    /// the caller's own `PATH` finds it.
    pub fn run(&self, caller: &Caller<'_>) -> Result<std::convert::Infallible, VerbError> {
        let found = self.find(caller)?;
        if let Attachment::Attached(_) = &found {
            caller
                .warnings_of_rank()
                .iter()
                .for_each(|line| complain(NAME, line));
        }
        let program = &self.command[0];
        let mut command = Command::new(program);
        command.args(&self.command[1..]);
        if self.starter
            && !is_of_tm(caller.env)
            && let Some(name) = self.lone_shell(caller.env)
        {
            command.arg0(format!("-{name}"));
        }
        for change in found.changes() {
            match change.value {
                Some(value) => command.env(change.name, value),
                None => command.env_remove(change.name),
            };
        }
        let error = command.exec();
        let line = format!("cannot run '{}': {error}", program.to_string_lossy());
        // The codes of env(1) and every shell.
        let code = if error.kind() == ErrorKind::NotFound {
            127
        } else {
            126
        };
        Err(VerbError { line, code })
    }

    /// Every task of the node passes a starter, so only a readable record may stop one.
    fn find(&self, caller: &Caller<'_>) -> Result<Attachment, Failure> {
        if !self.starter {
            return match caller.find()? {
                Attachment::WithoutMps(_) => Err(no_mps(caller).into()),
                found => Ok(found),
            };
        }
        if caller.uid == 0 {
            as_root(caller)?;
        }
        if caller.job().is_none() {
            return Ok(Attachment::NO_JOB);
        }
        match caller.find_or_unread() {
            Ok(Attachment::Unread(unread)) => {
                complain(NAME, &format!("{unread}; the task runs without MPS"));
                Ok(Attachment::NO_JOB)
            }
            // No record, and no usable configuration that could name another directory.
            Err(Failure::Fault(_)) => Ok(Attachment::NO_JOB),
            Ok(without @ Attachment::WithoutMps(_)) => {
                self.tell_of_variable(caller.env);
                Ok(without)
            }
            found => found,
        }
    }

    /// The variable MPS asks for nothing: a script may have it. Torque's prologue sees none.
    fn tell_of_variable(&self, env: Lookup<'_>) {
        let is_meant = |value: String| REQUESTS.contains(&value.to_ascii_lowercase().as_str());
        if !is_of_tm(env) && self.lone_shell(env).is_some() && env("MPS").is_some_and(is_meant) {
            complain(NAME, NO_REQUEST);
        }
    }

    fn lone_shell(&self, env: Lookup<'_>) -> Option<String> {
        let [only] = self.command.as_slice() else {
            return None;
        };
        let name = Path::new(only).file_name()?.to_str()?;
        let own = || env("SHELL").is_some_and(|shell| Path::new(&shell) == Path::new(only));
        (SHELLS.contains(&name) || own()).then(|| name.to_owned())
    }
}

/// Whether TM started this task: Torque gives number 1 to the job's own shell.
fn is_of_tm(env: Lookup<'_>) -> bool {
    let number = env("PBS_TASKNUM").and_then(|number| number.trim().parse::<u32>().ok());
    number > Some(1)
}

/// Refuses a user's job. A mom that may run its starter as root would run every user's task as
/// root. A task of TM can set the variables that name the user, so on such a node the starter runs
/// nothing.
fn as_root(caller: &Caller<'_>) -> Result<(), Refusal> {
    let is_users = |name| (caller.env)(name).is_some_and(|user| user != "root");
    let settings = Settings::load(caller.config, &ThisHost.name());
    let location = Location::of(&settings.unwrap_or_else(|_| Settings::usual()));
    let (why, allowed) = if let Some(config) = may_run_as_root(&location, &ThisHost) {
        let config = config.display();
        let why = format!(
            "it runs as root, and '{config}' may have $job_starter_run_privileged or cannot be read"
        );
        (why, "that line says false")
    } else if is_users("USER") || is_users("LOGNAME") {
        let why = "it runs as root and the job is a user's".to_owned();
        (why, "no $job_starter_run_privileged")
    } else {
        return Ok(());
    };
    Err(Refusal::new("job starter", why, allowed))
}

pub(super) fn no_mps(caller: &Caller<'_>) -> Refusal {
    match caller.job() {
        Some(job) => {
            let allowed = "a job submitted with --mps (Slurm) or -A MPS=true (PBS), on its node while it runs";
            Refusal::new(format!("job {job}"), "it has no MPS on this node", allowed)
        }
        None => Refusal::new("exec", NO_JOB, "--job ID"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec(starter: bool, words: &[&str]) -> Exec {
        Exec {
            job: None,
            starter,
            command: words.iter().map(OsString::from).collect(),
        }
    }

    #[test]
    fn the_hook_knows_the_same_launchers() {
        let hook = include_str!("../../../etc/pbs/hooks/mpsd.py");
        let (_, line) = hook.split_once("\nLAUNCHERS = ").unwrap();
        let line = line.lines().next().unwrap();
        let theirs: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
        assert_eq!(theirs, LAUNCHERS);
    }

    #[test]
    fn the_hook_tells_of_the_same_variable() {
        let hook = include_str!("../../../etc/pbs/hooks/mpsd.py");
        let list = format!("in (\"{}\")", REQUESTS.join("\", \""));
        assert!(hook.contains(&list) && hook.contains(NO_REQUEST));
    }

    #[test]
    fn only_a_lone_shell_becomes_a_login_shell() {
        let shell = |words: &[&str]| exec(true, words).lone_shell(&|_| None);
        assert_eq!(shell(&["/bin/bash"]).as_deref(), Some("bash"));
        assert_eq!(shell(&["/bin/bash", "x"]), None);
        assert_eq!(shell(&["/usr/bin/python3"]), None);
        let own = |name: &str| (name == "SHELL").then(|| "/opt/nu".to_owned());
        let lone = exec(true, &["/opt/nu"]).lone_shell(&own);
        assert_eq!(lone.as_deref(), Some("nu"));
        assert_eq!(exec(true, &["/usr/nu"]).lone_shell(&own), None);
        let main = |starter: bool, words: &[&str]| exec(starter, words).is_main(&|_| None);
        assert!(main(true, &["zsh"]) && !main(false, &["zsh"]));
        assert!(main(true, &["/opt/mpi/bin/orted", "-mca"]) && !main(true, &["./app"]));
        let task = |number: &'static str| is_of_tm(&move |_| Some(number.to_owned()));
        assert!(task("2") && !task("1") && !task("x") && !is_of_tm(&|_| None));
    }
}
