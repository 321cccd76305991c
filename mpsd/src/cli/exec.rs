//! `mpsctl exec -- COMMAND`: a task attached to its job's MPS, with its rank's limits, where no plugin or hook reaches.

use super::attach::{Caller, Found};
use crate::model::failure::EXIT_REFUSED;
use crate::model::{Failure, Refusal};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Shells that Torque starts as login shells where it has no `$job_starter`.
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish"];
/// What MPI's launchers start on a job's other nodes: it has no rank itself, its children have.
const LAUNCHERS: [&str; 5] = [
    "orted",
    "prted",
    "hydra_pmi_proxy",
    "hydra_bstrap_proxy",
    "pmi_proxy",
];
/// What env(1) and every shell answer for a command that is not there, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUN: u8 = 126;

/// `mpsctl exec`.
#[derive(Debug, Clone, clap::Args)]
pub struct Exec {
    /// The job; from the scheduler's variables if not given
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// Torque's $job_starter: a job without MPS runs as it is, a lone shell becomes a login shell
    #[arg(long)]
    pub starter: bool,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
}

/// Why the command does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotRun {
    /// One line.
    pub line: String,
    /// 1 or 2 for a failure of the job's MPS, 127 or 126 for the command itself.
    pub code: u8,
}

impl From<Failure> for NotRun {
    fn from(failure: Failure) -> Self {
        Self {
            line: failure.to_string(),
            code: failure.exit_code(),
        }
    }
}

impl Exec {
    /// Whether the command is the job's main shell or an MPI launcher's daemon, whose ranks come later.
    pub fn is_main(&self) -> bool {
        let name = self
            .command
            .first()
            .and_then(|program| Path::new(program).file_name());
        let launcher = name
            .and_then(|name| name.to_str())
            .is_some_and(|name| LAUNCHERS.contains(&name));
        self.starter && (launcher || self.lone_shell().is_some())
    }

    /// Turns this process into the command; returns only when that cannot be done. The command is looked for in the
    /// caller's own `PATH`: it is the user's, and runs as the user.
    ///
    /// # Errors
    /// The job has no MPS here, or it was refused or failed, or the command cannot be run.
    pub fn run(&self, caller: &Caller<'_>) -> Result<std::convert::Infallible, NotRun> {
        let found = self.find(caller)?;
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(NotRun {
                line: "no command".to_owned(),
                code: EXIT_REFUSED,
            });
        };
        let mut command = Command::new(program);
        command.args(arguments);
        if let (true, Some(name)) = (self.starter, self.lone_shell()) {
            command.arg0(format!("-{name}"));
        }
        for change in found.changes() {
            match change.value {
                Some(value) => command.env(change.name, value),
                None => command.env_remove(change.name),
            };
        }
        let error = command.exec();
        let code = if error.kind() == ErrorKind::NotFound {
            NOT_FOUND
        } else {
            NOT_RUN
        };
        Err(NotRun {
            line: format!("cannot run '{}': {error}", program.to_string_lossy()),
            code,
        })
    }

    /// What attaches the command. A starter meets every task of the node: a job without MPS runs whatever is wrong here.
    fn find(&self, caller: &Caller<'_>) -> Result<Found, Failure> {
        if !self.starter {
            return match caller.find()? {
                Found::WithoutMps(_) | Found::NoJob => Err(no_mps(caller).into()),
                found => Ok(found),
            };
        }
        let root = |name: &&str| (caller.env)(name).is_none_or(|user| user == "root");
        if caller.uid == 0 && !["USER", "LOGNAME"].iter().all(root) {
            let why = "it runs as root and the job is a user's";
            return Err(Refusal::new("job starter", why, "no $job_starter_run_privileged").into());
        }
        match caller.find() {
            _ if caller.job().is_none() => Ok(Found::NoJob),
            // No record, and no configuration that could tell of one elsewhere.
            Err(Failure::Fault(_)) => Ok(Found::NoJob),
            found => found,
        }
    }

    /// The name of the shell, when the command is a shell and nothing else.
    fn lone_shell(&self) -> Option<String> {
        let [only] = self.command.as_slice() else {
            return None;
        };
        let name = Path::new(only).file_name()?.to_str()?;
        SHELLS.contains(&name).then(|| name.to_owned())
    }
}

fn no_mps(caller: &Caller<'_>) -> Refusal {
    match caller.job() {
        Some(job) => {
            let allowed = "a job submitted with --mps (Slurm) or -A MPS=true (PBS)";
            Refusal::new(format!("job {job}"), "it has no MPS on this node", allowed)
        }
        None => Refusal::new(
            "mpsctl exec",
            "this is no job: PBS_JOBID and SLURM_JOB_ID are not set",
            "--job ID",
        ),
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
    fn outside_a_job_exec_says_why() {
        let caller = Caller {
            config: Path::new("/nonexistent"),
            job: None,
            env: &|_| None,
            uid: 1000,
            main: false,
        };
        let not = exec(false, &["true"]).run(&caller).unwrap_err();
        assert!(
            not.line.contains("PBS_JOBID and SLURM_JOB_ID are not set"),
            "{not:?}"
        );
        assert_eq!(not.code, 1);
        assert_eq!(
            exec(true, &["/nonexistent/x"]).run(&caller).unwrap_err().code,
            127
        );
    }

    #[test]
    fn only_a_lone_shell_becomes_a_login_shell() {
        assert_eq!(exec(true, &["/bin/bash"]).lone_shell().as_deref(), Some("bash"));
        assert_eq!(exec(true, &["/bin/bash", "x"]).lone_shell(), None);
        assert_eq!(exec(true, &["/usr/bin/python3"]).lone_shell(), None);
        assert!(exec(true, &["zsh"]).is_main() && !exec(false, &["zsh"]).is_main());
        assert!(exec(true, &["/opt/mpi/bin/orted", "-mca"]).is_main() && !exec(true, &["./app"]).is_main());
    }
}
