//! `mpsctl pbs` in a Torque: our scripts, and our `$job_starter`. It stands beside the scripts in `mom_priv`, so that it outlives our package: a mom whose starter is gone can start no job at all.

use super::product::PRODUCT;
use super::reread;
use super::starter::{self, Starter, names, own_way_with_shells};
use crate::scheduler::batch_system::Unattached;
use crate::scheduler::pbs::files::{self, Owner, Script};
use crate::scheduler::pbs::installation::{Installation, Product};
use crate::scheduler::pbs::verbs::{Install, OwnSteps, consequence, unattached};
use crate::scheduler::setup::{CheckLine, SetupContext, VerbReport, ensure, place, remove};
use std::fs;
use std::io::{self, ErrorKind};
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

const JOB_STARTER: &str = include_str!("../../../../etc/pbs/torque/job-starter");

/// Our scripts: the mother superior runs the first of each kind, the sisters the second.
pub(crate) static SCRIPTS: [Script; 2] = [
    Script {
        names: &["prologue", "prologue.parallel"],
        text: include_str!("../../../../etc/pbs/torque/prologue"),
        program: "mps-prologue",
        lines: [
            "case $7 in *[Mm][Pp][Ss]*) PROGRAM --scheduler torque \"$@\" </dev/null || exit $? ;; esac",
            "# (near its end, after everything that can fail)",
        ],
    },
    Script {
        names: &["epilogue", "epilogue.parallel"],
        text: include_str!("../../../../etc/pbs/torque/epilogue"),
        program: "mps-epilogue",
        lines: [
            "PROGRAM --scheduler torque \"$@\" </dev/null",
            "# (near its beginning, whatever the rest does)",
        ],
    },
];

/// The steps of `mpsctl pbs` that are Torque's own.
pub(crate) struct Steps;

impl OwnSteps for Steps {
    fn product(&self) -> &'static Product {
        &PRODUCT
    }

    fn scripts(&self) -> &'static [Script] {
        &SCRIPTS
    }

    fn install(
        &self,
        pbs: &Installation,
        options: &Install,
        around: &SetupContext<'_>,
    ) -> Result<VerbReport, String> {
        let mut done = files::install(pbs, &SCRIPTS, around)?;
        done.add(install(pbs, !options.no_job_starter, around)?);
        Ok(done)
    }

    /// Takes the lines that name our starter out of the mom's configuration. The file goes only where no line names it any
    /// more: until its SIGHUP the mom starts every task through it.
    fn uninstall(&self, pbs: &Installation, _: &SetupContext<'_>) -> Result<VerbReport, String> {
        let mut done = VerbReport::default();
        let (config, starter) = (pbs.mom_config(), path(pbs));
        let (shown, ours) = (config.display(), starter.display());
        let text = contents(&config).map_err(|e| format!("cannot read '{shown}': {e}; '{ours}' stays"))?;
        let is_ours = |line: &[u8]| {
            let line = String::from_utf8_lossy(line);
            line.trim() == ABOVE || names(&line, &starter)
        };
        let kept: Vec<&[u8]> = text
            .split_inclusive(|byte| *byte == b'\n')
            .filter(|line| !is_ours(line))
            .collect();
        let kept = kept.concat();
        if kept.len() < text.len() {
            replace(&config, &kept).map_err(|why| format!("cannot change '{shown}': {why}"))?;
            done.left(format!("took '{}' out of '{shown}'; {REREAD}", config_line(pbs)));
            done.left(format!("'{ours}' stays until then: run this again, after:"));
            let command = reread::command(pbs).unwrap_or_else(|| "a start of the mom".to_owned());
            done.left(format!("    {command}"));
        } else if files::owner(&starter) == Owner::Ours {
            remove(&starter, &mut done)?;
        }
        Ok(done)
    }

    /// Whether tasks that TM starts are attached, and what becomes of jobs where they are not.
    fn check_tasks(&self, pbs: &Installation, _: bool, around: &SetupContext<'_>) -> Option<CheckLine> {
        let config = pbs.mom_config();
        let starter = format!("the $job_starter of '{}'", config.display());
        let missing = starter::unattached(pbs, around.host);
        Some(match (Starter::of(pbs, around.host), missing) {
            (Starter::Privileged { ours: true }, _) => CheckLine::Fail(privileged(pbs)),
            (_, Some(Unattached { why, remedy, .. })) => unattached(&why, &remedy, around),
            (_, None) => match own_way_with_shells(pbs, around.host) {
                Some(line) => CheckLine::Warn(format!("{starter}: {}", lost(line))),
                None => CheckLine::Pass(format!("{starter}: every task has its MPS")),
            },
        })
    }

    fn check_absent(&self, shown: &str) -> CheckLine {
        CheckLine::Fail(format!(
            "no '{shown}': jobs run without MPS; run 'mpsctl pbs install'"
        ))
    }
}

/// Our starter in this installation.
fn path(pbs: &Installation) -> PathBuf {
    pbs.mom_priv().join("mpsd-job-starter")
}

fn config_line(pbs: &Installation) -> String {
    format!("$job_starter {}", path(pbs).display())
}

/// Writes our starter, and the line that makes the mom use it where no other stands.
fn install(pbs: &Installation, wanted: bool, around: &SetupContext<'_>) -> Result<VerbReport, String> {
    let mut done = VerbReport::default();
    let config = pbs.mom_config();
    let starter = Starter::of(pbs, around.host);
    let none = matches!(starter, Starter::Absent | Starter::Privileged { ours: false });
    if !wanted && none {
        done.did("no $job_starter, as wished:");
        done.did(format!("    {}", consequence(around)));
        return Ok(done);
    }
    let own_way = own_way_with_shells(pbs, around.host);
    match starter {
        Starter::Absent => match own_way.map(lost).or_else(|| closed(pbs)) {
            Some(why) => left_out(&why, around, &mut done),
            None => set(pbs, around, &mut done)?,
        },
        Starter::Ours(at) => {
            match closed(pbs).filter(|_| at == path(pbs)) {
                Some(why) => done.left(format!("$job_starter '{}': {why}", at.display())),
                None if at == path(pbs) && write(pbs, around)? => {
                    done.did(format!("wrote '{}'", at.display()));
                }
                None => {}
            }
            done.did(format!("$job_starter '{}' is ours", at.display()));
            tell_mom(pbs, &mut done);
            if let Some(line) = own_way {
                let (what, config) = (lost(line), config.display());
                done.left(format!("take it out of '{config}': {what}"));
            }
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
        Starter::Privileged { ours: true } => done.left(privileged(pbs)),
        Starter::Privileged { ours: false } => left_out(&privileged(pbs), around, &mut done),
        Starter::Unread(why) => {
            let config = config.display();
            left_out(&format!("'{config}' cannot be read ({why})"), around, &mut done);
        }
    }
    Ok(done)
}

/// Our starter, and the line that names it.
fn set(pbs: &Installation, around: &SetupContext<'_>, done: &mut VerbReport) -> Result<(), String> {
    let config = pbs.mom_config();
    let config_name = config.display();
    write(pbs, around)?;
    match append(&config, &config_line(pbs)) {
        Ok(()) => {
            done.did(format!(
                "wrote '{}' and its line in '{config_name}'; {REREAD}",
                path(pbs).display()
            ));
            tell_mom(pbs, done);
        }
        Err(why) => {
            done.left(format!("cannot change '{config_name}' ({why}); add to it:"));
            done.left(format!("    {}", config_line(pbs)));
        }
    }
    Ok(())
}

/// The command that puts our starter in force, where the mom runs without it.
fn tell_mom(pbs: &Installation, done: &mut VerbReport) {
    if let Some(command) = reread::needed(pbs, &path(pbs)) {
        done.did("until then tasks that TM starts run outside MPS; now run:");
        done.did(format!("    {command}"));
    }
}

fn left_out(why: &str, around: &SetupContext<'_>, done: &mut VerbReport) {
    done.left(format!("no $job_starter was set: {why}"));
    done.left(format!("    {}", consequence(around)));
}

fn lost(line: &str) -> String {
    format!("the mom has {line}, and under any $job_starter that is lost for every job")
}

/// The mom reads `$job_starter_run_privileged` anew by SIGHUP, but does not forget it (Torque 6.1, parse_config.c).
fn privileged(pbs: &Installation) -> String {
    format!(
        "'{}' has $job_starter_run_privileged, and ours runs as the job's user only: set it to false (without the line \
         the mom keeps it until its next start)",
        pbs.mom_config().display()
    )
}

/// The bytes of a mom's configuration, in whatever encoding; none where there is no file.
fn contents(config: &Path) -> io::Result<Vec<u8>> {
    match fs::read(config) {
        Err(gone) if gone.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        other => other,
    }
}

fn write(pbs: &Installation, around: &SetupContext<'_>) -> Result<bool, String> {
    ensure(&path(pbs), files::render(JOB_STARTER, around), STARTER_MODE)
}

/// Why users cannot reach our starter, if they cannot. It has no other place: a package takes its own files with it.
fn closed(pbs: &Installation) -> Option<String> {
    let path = path(pbs);
    let closed = path.ancestors().skip(1).find(|dir| !may_pass(dir))?;
    Some(format!("users may not pass '{}'", closed.display()))
}

fn may_pass(directory: &Path) -> bool {
    fs::metadata(directory).is_ok_and(|about| about.mode() & 0o001 != 0)
}

fn append(config: &Path, line: &str) -> Result<(), String> {
    let mut text = contents(config).map_err(|e| e.to_string())?;
    if !text.is_empty() && !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    text.extend_from_slice(format!("{ABOVE}\n{line}\n").as_bytes());
    replace(config, &text)
}

/// Writes the mom's configuration with its own mode; a link, or somebody else's file, is managed elsewhere.
fn replace(config: &Path, text: &[u8]) -> Result<(), String> {
    let mode = match fs::symlink_metadata(config) {
        Ok(about) if !about.is_file() => return Err("it is no plain file".to_owned()),
        Ok(about) if about.uid() != 0 || about.gid() != 0 => return Err("it is not root's".to_owned()),
        Ok(about) => about.mode() & 0o777,
        Err(_) => CONFIG_MODE,
    };
    place(config, text, mode)
}

#[cfg(test)]
mod tests {
    //! The line in a mom's configuration.

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
