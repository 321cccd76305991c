//! `mpsctl env`: the variables that attach a shell to its job's MPS, for that shell to evaluate.

mod container;

use super::attach::Caller;
use container::Container;
use mpsd_core::Failure;
use mpsd_core::environment::{Change, VISIBLE_DEVICES};
use nix::unistd::getegid;
use std::ffi::OsString;

/// `mpsctl env`.
#[derive(Debug, Clone, clap::Args)]
pub struct Env {
    /// The job; from the scheduler's variables if not given
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// For whom to print
    #[arg(long, value_enum, default_value = "sh")]
    pub shell: Shell,
    /// Print the options that attach a container, for its runtime: podman run $(mpsctl env --container podman) IMAGE
    #[arg(long, value_enum, value_name = "RUNTIME", conflicts_with = "shell")]
    pub container: Option<Container>,
    /// This is the job's main shell, which has no rank: it gets the lowest limit of a list, and no GPU's own daemon
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
    /// fish
    Fish,
    /// One object: a value for each variable, null for one to remove
    Json,
}

impl Env {
    /// The text to print. Empty (in JSON: an empty object) outside a job and in a job without MPS, unless another job's
    /// MPS left variables.
    ///
    /// # Errors
    /// As [`Caller::find`]; as [`Container::write`].
    pub fn run(&self, caller: &Caller<'_>) -> Result<String, Failure> {
        let mut changes = caller.find()?.changes();
        Ok(match self.container {
            Some(container) => {
                // As the scheduler set it (MPS_VISIBLE=keep): most runtimes pass no variable on by themselves.
                if changes.iter().all(|change| change.name != VISIBLE_DEVICES) {
                    let (name, value) = (VISIBLE_DEVICES, (caller.env)(VISIBLE_DEVICES));
                    changes.push(Change { name, value });
                }
                // One that is to be removed matters where it is.
                changes.retain(|change| change.value.is_some() || (caller.env)(change.name).is_some());
                container.write(&changes, caller.uid, getegid().as_raw())?
            }
            None => self.shell.write(&changes),
        })
    }

    /// What is printed when the words of the command line are wrong ones: a container would start without its options.
    pub fn of_unread(words: impl Iterator<Item = OsString>) -> &'static str {
        let words: Vec<OsString> = words.collect();
        let asks = |word: &OsString| word.to_string_lossy().starts_with("--container");
        match words.iter().any(|word| word == "env") && words.iter().any(asks) {
            true => Container::FAILURE,
            false => "",
        }
    }

    /// What is printed when nothing could be found out, so that what reads it fails as well.
    pub fn failure(&self) -> &'static str {
        match self.container {
            Some(_) => Container::FAILURE,
            None => self.shell.failure(),
        }
    }
}

impl Shell {
    /// What a shell evaluates when nothing could be found out. `eval ""` succeeds in every shell, so that a script under
    /// `set -e`, or one that asks for the status, would go on without its MPS.
    fn failure(self) -> &'static str {
        match self {
            Self::Sh | Self::Csh | Self::Fish => "false\n",
            Self::Json => "",
        }
    }

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
            Self::Fish => {
                let quoted = |value: &str| format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"));
                let line = |change: &Change| match &change.value {
                    Some(value) => format!("set -gx {} {};\n", change.name, quoted(value)),
                    None => format!("set -e {};\n", change.name),
                };
                changes.iter().map(line).collect()
            }
            Self::Json => {
                let all: serde_json::Map<String, serde_json::Value> = changes
                    .iter()
                    .map(|change| (change.name.to_owned(), change.value.clone().into()))
                    .collect();
                format!("{}\n", serde_json::Value::Object(all))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! What each shell reads.

    use super::*;
    use mpsd_core::environment::{JOB, VISIBLE_DEVICES};
    use std::path::Path;

    #[test]
    fn each_shell_reads_what_is_printed_for_it() {
        let changes = [
            Change {
                name: JOB,
                value: Some("it's 4!".to_owned()),
            },
            Change {
                name: VISIBLE_DEVICES,
                value: None,
            },
        ];
        assert_eq!(
            Shell::Sh.write(&changes),
            "export MPSD_JOB='it'\\''s 4!'\nunset CUDA_VISIBLE_DEVICES\n"
        );
        assert_eq!(
            Shell::Csh.write(&changes),
            "setenv MPSD_JOB 'it'\\''s 4\\!';\nunsetenv CUDA_VISIBLE_DEVICES;\n"
        );
        assert_eq!(
            Shell::Fish.write(&changes),
            "set -gx MPSD_JOB 'it\\'s 4!';\nset -e CUDA_VISIBLE_DEVICES;\n"
        );
        assert_eq!(
            Shell::Json.write(&changes),
            "{\"CUDA_VISIBLE_DEVICES\":null,\"MPSD_JOB\":\"it's 4!\"}\n"
        );
        assert_eq!(Shell::Sh.write(&[]), "");
    }

    #[test]
    fn outside_a_job_nothing_is_printed() {
        let caller = Caller {
            config: Path::new("/nonexistent"),
            job: None,
            env: &|_| None,
            uid: 1000,
            main: false,
        };
        let env = |shell| {
            Env {
                job: None,
                shell,
                container: None,
                main: false,
            }
            .run(&caller)
        };
        assert_eq!(env(Shell::Sh), Ok(String::new()));
        assert_eq!(env(Shell::Json), Ok("{}\n".to_owned()));
    }
}
