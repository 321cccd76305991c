//! Slurm's own commands.

use crate::scheduler::host::{Host, ThisHost};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where a Slurm's commands are, most usual first.
const COMMANDS: [&str; 4] = [
    "/usr/bin",
    "/usr/local/bin",
    "/opt/slurm/bin",
    "/usr/local/slurm/bin",
];

/// The directory of Slurm's commands; the most usual one where there is no Slurm.
pub(super) fn directory() -> PathBuf {
    let has = |dir: &&&str| Path::new(dir).join("scontrol").exists();
    COMMANDS.iter().find(has).unwrap_or(&COMMANDS[0]).into()
}

/// What a command of Slurm's answers, where it ends with 0; `conf` is `SLURM_CONF`.
pub(super) fn ask(
    program: &str,
    arguments: &[&str],
    conf: Option<&str>,
    deadline: Duration,
) -> Result<String, String> {
    let conf: Vec<(&str, &str)> = conf.iter().map(|conf| ("SLURM_CONF", *conf)).collect();
    let answer = ThisHost.run(&directory().join(program), arguments, &conf, deadline)?;
    answer.accepted(program)
}
