//! Torque's `$job_starter`: the only thing that reaches tasks which TM starts. Ours stands beside the wrappers in
//! `mom_priv`, so that it outlives our package: a mom whose starter is gone can start no job at all.

use super::files::{self, JOB_STARTER, Owner};
use super::{Done, Finding, Surroundings};
use crate::config::UnattachedTasks;
use crate::scheduler::Host;
use crate::scheduler::pbs::Installation;
use crate::scheduler::tasks::Starter;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The line above ours in the mom's configuration.
const ABOVE: &str = "# mpsd: written by 'mpsctl pbs install': tasks that TM starts get their job's MPS";
/// Every user's tasks go through it.
const STARTER_MODE: u32 = 0o755;
/// The mom's own files, where there is none yet.
const CONFIG_MODE: u32 = 0o644;
/// What the mom needs to read its configuration again.
const REREAD: &str = "the mom reads it at its next start, or by SIGHUP";

/// Our starter in this installation.
fn path(pbs: &Installation) -> PathBuf {
    pbs.mom_priv().join("mpsd-job-starter")
}

fn config_line(pbs: &Installation) -> String {
    format!("$job_starter {}", path(pbs).display())
}

/// Writes our starter, and the line that makes the mom use it where no other stands.
pub(super) fn install(
    pbs: &Installation,
    wanted: bool,
    around: &Surroundings,
    host: &dyn Host,
) -> Result<Done, String> {
    let mut done = Done::new();
    let config = pbs.mom_config();
    let starter = Starter::of(pbs, host);
    if !wanted && starter == Starter::Absent {
        done.did("no $job_starter, as wished:");
        done.did(format!("    {}", consequence(around)));
        return Ok(done);
    }
    match starter {
        Starter::Absent => {
            write(pbs, around)?;
            match append(&config, &config_line(pbs)) {
                Ok(()) => done.did(format!(
                    "wrote '{}' and its line in '{}'; {REREAD}",
                    path(pbs).display(),
                    config.display()
                )),
                Err(why) => {
                    done.left(format!(
                        "cannot change '{}' ({why}); add to it:",
                        config.display()
                    ));
                    done.left(format!("    {}", config_line(pbs)));
                }
            }
        }
        Starter::Ours(at) => {
            if at == path(pbs) {
                write(pbs, around)?;
            }
            done.did(format!("$job_starter '{}' is ours", at.display()));
        }
        Starter::Foreign(at) => {
            done.left(format!(
                "$job_starter '{}' is the site's own and stays; let its last line be:",
                at.display()
            ));
            done.left(format!(
                "    exec {} exec --starter -- \"$@\"",
                files::command(&around.programs.join("mpsctl"), around)
            ));
        }
        Starter::Privileged(_) => done.left(format!(
            "take $job_starter_run_privileged out of '{}': our starter runs as the job's user only",
            config.display()
        )),
    }
    Ok(done)
}

/// Takes our line out of the mom's configuration. The file goes only where no line names it any more: until its SIGHUP
/// the mom starts every task through it.
pub(super) fn uninstall(pbs: &Installation) -> Result<Done, String> {
    let mut done = Done::new();
    let config = pbs.mom_config();
    let text = fs::read_to_string(&config).unwrap_or_default();
    let ours = config_line(pbs);
    let kept: Vec<&str> = text
        .lines()
        .filter(|line| *line != ABOVE && line.trim() != ours)
        .collect();
    if kept.len() < text.lines().count() {
        let kept: String = kept.iter().map(|line| format!("{line}\n")).collect();
        replace(&config, &kept).map_err(|why| format!("cannot change '{}': {why}", config.display()))?;
        done.left(format!("took '{ours}' out of '{}'; {REREAD}", config.display()));
        done.left(format!(
            "'{}' stays until then: run this again",
            path(pbs).display()
        ));
    } else if files::owner(&path(pbs)) == Owner::Ours {
        fs::remove_file(path(pbs)).map_err(|e| format!("cannot remove '{}': {e}", path(pbs).display()))?;
        done.did(format!("removed '{}'", path(pbs).display()));
    }
    Ok(done)
}

/// Whether tasks that TM starts are attached, and what becomes of jobs where they are not.
pub(super) fn check(pbs: &Installation, around: &Surroundings, host: &dyn Host) -> Finding {
    let config = pbs.mom_config();
    let config = config.display();
    let missing = match Starter::of(pbs, host) {
        Starter::Ours(at) => {
            return Finding::Good(format!("$job_starter '{}': every task has its MPS", at.display()));
        }
        Starter::Privileged(_) => {
            return Finding::Wrong(format!(
                "'{config}' has $job_starter_run_privileged: our starter runs as the job's user only; take it out"
            ));
        }
        Starter::Absent => format!("'{config}' has no $job_starter"),
        Starter::Foreign(at) => format!("$job_starter '{}' does not call mpsctl exec", at.display()),
    };
    unattached(&missing, around)
}

/// What is missing, and what follows of it here.
pub(super) fn unattached(missing: &str, around: &Surroundings) -> Finding {
    let text = format!("{missing}: {}; see 'mpsctl pbs install'", consequence(around));
    if around.unattached == UnattachedTasks::Refuse {
        Finding::Wrong(text)
    } else {
        Finding::Better(text)
    }
}

/// What a job is told where its TM tasks are not attached.
pub(super) fn consequence(around: &Surroundings) -> &'static str {
    match around.unattached {
        UnattachedTasks::Refuse => {
            "every job that asks for MPS is refused, as unattached_tasks under [pbs] of mpsd.toml wants"
        }
        UnattachedTasks::Warn => "tasks that TM starts run outside MPS unless they are 'mpsctl exec -- CMD'",
    }
}

fn write(pbs: &Installation, around: &Surroundings) -> Result<(), String> {
    let path = path(pbs);
    if let Some(closed) = path.ancestors().skip(1).find(|dir| !may_pass(dir)) {
        return Err(format!(
            "users may not pass '{}': set '$job_starter {JOB_STARTER}' in '{}' by hand",
            closed.display(),
            pbs.mom_config().display()
        ));
    }
    files::place(
        &path,
        &files::render(files::TORQUE_JOB_STARTER, around),
        STARTER_MODE,
    )
    .map_err(|e| format!("cannot write '{}': {e}", path.display()))
}

fn may_pass(directory: &Path) -> bool {
    fs::metadata(directory).is_ok_and(|about| about.mode() & 0o001 != 0)
}

fn append(config: &Path, line: &str) -> Result<(), String> {
    let old = match fs::read_to_string(config) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => return Err(e.to_string()),
    };
    let end = if old.is_empty() || old.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    replace(config, &format!("{old}{end}{ABOVE}\n{line}\n"))
}

/// Writes the mom's configuration with its own mode; a link, or somebody else's file, is managed elsewhere.
fn replace(config: &Path, text: &str) -> Result<(), String> {
    let mode = match fs::symlink_metadata(config) {
        Ok(about) if !about.is_file() => return Err("it is no plain file".to_owned()),
        Ok(about) if about.uid() != 0 || about.gid() != 0 => return Err("it is not root's".to_owned()),
        Ok(about) => about.mode() & 0o777,
        Err(_) => CONFIG_MODE,
    };
    files::place(config, text, mode).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_added_once_behind_what_stands_and_taken_out_again() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config");
        fs::write(&config, "$logevent 255").unwrap();
        assert_eq!(
            append(&config, "$job_starter /x"),
            Ok(()),
            "run as root, as CI does"
        );
        assert_eq!(
            fs::read_to_string(&config).unwrap(),
            format!("$logevent 255\n{ABOVE}\n$job_starter /x\n")
        );
        std::os::unix::fs::symlink(&config, dir.path().join("link")).unwrap();
        assert!(append(&dir.path().join("link"), "$job_starter /x").is_err());
    }
}
