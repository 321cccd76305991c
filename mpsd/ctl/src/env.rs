//! `mpsctl env`: prints the variables that attach a shell to its job's MPS, for the shell to
//! evaluate.

use super::attach::{Attachment, Caller};
use super::container_options::Container;
use super::exec::no_mps;
use mpsd_core::Failure;
use mpsd_core::environment::{Change, VISIBLE_DEVICES};
use nix::unistd::getegid;
use std::ffi::OsString;

#[derive(Debug, Clone, clap::Args)]
pub struct Env {
    /// The job; from the scheduler's variables if not given
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// The shell to print for
    #[arg(long, value_enum, default_value = "sh")]
    pub shell: Shell,
    /// Print the options that attach a container, for its runtime: podman run $(mpsctl env
    /// --container podman) IMAGE
    #[arg(long, value_enum, value_name = "RUNTIME", conflicts_with_all = ["shell", "main"])]
    pub container: Option<Container>,
    /// This is the job's main shell, which has no rank: it gets the lowest limit of a list, and no
    /// GPU's own daemon
    #[arg(long)]
    pub main: bool,
    /// This is the job's first process: its batch script has come by now (OpenPBS's hook)
    #[arg(long, hide = true, requires = "main")]
    pub first: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Shell {
    /// sh, bash, zsh, ksh
    Sh,
    /// csh, tcsh
    Csh,
    /// fish
    Fish,
    /// One object: a value for each variable, null for one to remove
    Json,
}

impl Env {
    /// The text to print. It is empty (an empty object) outside a job and in a job without MPS,
    /// unless another job's MPS left variables.
    pub fn run(&self, caller: &Caller<'_>) -> Result<String, Failure> {
        let found = caller.find()?;
        // Evaluating this would detach a shell from its own MPS. OpenPBS' hook also names jobs
        // without MPS.
        let is_named = self.job.is_some() && self.shell != Shell::Json;
        if is_named && matches!(found, Attachment::WithoutMps(_)) {
            return Err(no_mps(caller).into());
        }
        let mut changes = found.changes();
        Ok(match self.container {
            Some(container) => {
                // In a job that its site brought in the scheduler's list counts, and most runtimes
                // pass no variable on.
                if changes.iter().all(|change| change.name != VISIBLE_DEVICES) {
                    let (name, value) = (VISIBLE_DEVICES, (caller.env)(VISIBLE_DEVICES));
                    changes.push(Change { name, value });
                }
                // A variable is removed only if it is set.
                changes
                    .retain(|change| change.value.is_some() || (caller.env)(change.name).is_some());
                container.write(&changes, caller.uid, getegid().as_raw())?
            }
            None => self.shell.write(&changes),
        })
    }

    /// The output after a usage error: without it a container would start without its options.
    pub fn of_unread(words: impl Iterator<Item = OsString>) -> &'static str {
        let words: Vec<OsString> = words.collect();
        let is_option = |word: &OsString| word.to_string_lossy().starts_with("--container");
        match words.iter().any(|word| word == "env") && words.iter().any(is_option) {
            true => Container::FAILURE,
            false => "",
        }
    }

    pub fn failure(&self) -> &'static str {
        match (self.container, self.shell) {
            (Some(_), _) => Container::FAILURE,
            (None, Shell::Json) => "",
            // `eval ""` succeeds in every shell, so a script with `set -e` would continue without
            // its MPS.
            (None, Shell::Sh | Shell::Csh | Shell::Fish) => "false\n",
        }
    }
}

impl Shell {
    fn write(self, changes: &[Change]) -> String {
        if self == Self::Json {
            let value = |change: &Change| (change.name.to_owned(), change.value.clone().into());
            let all: serde_json::Map<String, serde_json::Value> =
                changes.iter().map(value).collect();
            return format!("{}\n", serde_json::Value::Object(all));
        }
        let line = |Change { name, value }: &Change| {
            let Some(value) = value else {
                return match self {
                    Self::Csh => format!("unsetenv {name};\n"),
                    Self::Fish => format!("set -e {name};\n"),
                    _ => format!("unset {name}\n"),
                };
            };
            let quoted = value.replace('\'', "'\\''");
            match self {
                // csh substitutes history even between single quotes.
                Self::Csh => format!("setenv {name} '{}';\n", quoted.replace('!', "\\!")),
                Self::Fish => {
                    let quoted = value.replace('\\', "\\\\").replace('\'', "\\'");
                    format!("set -gx {name} '{quoted}';\n")
                }
                _ => format!("export {name}='{quoted}'\n"),
            }
        };
        changes.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpsd_core::environment::JOB;

    /// A main shell may have no pipe directory, and the container would start without options.
    #[test]
    fn a_main_shell_has_no_options_of_a_container() {
        let parsed = |more: &[&str]| {
            let words = [&["env", "--container", "podman"], more].concat();
            let command = <Env as clap::Args>::augment_args(clap::Command::new("env"));
            command.try_get_matches_from(words)
        };
        parsed(&[]).unwrap();
        parsed(&["--main"]).unwrap_err();
    }

    #[test]
    fn each_shell_reads_its_own_syntax() {
        let changes = [Change::set(JOB, "it's 4!"), Change::unset(VISIBLE_DEVICES)];
        let written = |shell: Shell| shell.write(&changes);
        let sh = "export MPSD_JOB='it'\\''s 4!'\nunset CUDA_VISIBLE_DEVICES\n";
        assert_eq!(written(Shell::Sh), sh);
        let csh = "setenv MPSD_JOB 'it'\\''s 4\\!';\nunsetenv CUDA_VISIBLE_DEVICES;\n";
        assert_eq!(written(Shell::Csh), csh);
        let fish = "set -gx MPSD_JOB 'it\\'s 4!';\nset -e CUDA_VISIBLE_DEVICES;\n";
        assert_eq!(written(Shell::Fish), fish);
        let json = "{\"CUDA_VISIBLE_DEVICES\":null,\"MPSD_JOB\":\"it's 4!\"}\n";
        assert_eq!(written(Shell::Json), json);
    }

    #[test]
    fn outside_a_job_nothing_is_printed() {
        let caller = Caller {
            config: "/nonexistent".as_ref(),
            job: None,
            env: &|_| None,
            uid: 1000,
            main: false,
            first: false,
        };
        let env = |shell| Env {
            job: None,
            shell,
            container: None,
            main: false,
            first: false,
        };
        assert_eq!(env(Shell::Sh).run(&caller).as_deref(), Ok(""));
        assert_eq!(env(Shell::Json).run(&caller).as_deref(), Ok("{}\n"));
    }
}
