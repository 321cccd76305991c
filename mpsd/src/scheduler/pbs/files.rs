//! The classic scripts in `mom_priv`: written where none stands, replaced where ours stands, else left alone.

use super::setup::{Done, Surroundings, config_option};
use crate::scheduler::Scheduler;
use crate::scheduler::pbs::Installation;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The line that makes a script ours.
pub(crate) const TAG: &str = "# mpsd: written by 'mpsctl pbs install";
/// What pbs_mom demands and no more: root reads and runs it.
const SCRIPT_MODE: u32 = 0o500;
/// Where our programs stand in the shipped texts.
const SHIPPED: &str = "/usr/bin/";

const TORQUE_PROLOGUE: &str = include_str!("../../../../etc/pbs/torque/prologue");
pub(crate) const TORQUE_JOB_STARTER: &str = include_str!("../../../../etc/pbs/torque/job-starter");
const TORQUE_EPILOGUE: &str = include_str!("../../../../etc/pbs/torque/epilogue");
const OPENPBS_PROLOGUE: &str = include_str!("../../../../etc/pbs/openpbs/prologue");
const OPENPBS_EPILOGUE: &str = include_str!("../../../../etc/pbs/openpbs/epilogue");

/// The scripts of `scheduler`: name in `mom_priv`, text as shipped, lines for a site that has its own.
pub(crate) fn scripts(scheduler: Scheduler) -> Vec<(&'static str, &'static str, &'static [&'static str])> {
    const TORQUE_LINES: &[&str] = &[
        "case $7 in *[Mm][Pp][Ss]*) PROGRAM --scheduler torque \"$@\" </dev/null || exit $? ;; esac",
        "# (near its end, after everything that can fail)",
    ];
    const OPENPBS_LINES: &[&str] = &[
        "PROGRAM --scheduler openpbs \"$@\" </dev/null || exit $?",
        "# (near its end, after everything that can fail)",
    ];
    const TORQUE_END: &[&str] = &[
        "PROGRAM --scheduler torque \"$@\" </dev/null",
        "# (near its beginning, whatever the rest does)",
    ];
    const OPENPBS_END: &[&str] = &[
        "PROGRAM --scheduler openpbs \"$@\" </dev/null",
        "# (near its beginning, whatever the rest does)",
    ];
    match scheduler {
        Scheduler::Torque => vec![
            ("prologue", TORQUE_PROLOGUE, TORQUE_LINES),
            ("prologue.parallel", TORQUE_PROLOGUE, TORQUE_LINES),
            ("epilogue", TORQUE_EPILOGUE, TORQUE_END),
            ("epilogue.parallel", TORQUE_EPILOGUE, TORQUE_END),
        ],
        _ => vec![
            ("prologue", OPENPBS_PROLOGUE, OPENPBS_LINES),
            ("epilogue", OPENPBS_EPILOGUE, OPENPBS_END),
        ],
    }
}

/// Whether a script is ours, a stranger's, or not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Nobody,
    Ours,
    Foreign,
}

pub(crate) fn owner(path: &Path) -> Owner {
    match fs::read(path) {
        Ok(bytes)
            if String::from_utf8_lossy(&bytes)
                .lines()
                .take(3)
                .any(|line| line.starts_with(TAG)) =>
        {
            Owner::Ours
        }
        Err(gone) if gone.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => {
            Owner::Nobody
        }
        _ => Owner::Foreign,
    }
}

pub(crate) fn install(pbs: &Installation, around: &Surroundings) -> Result<Done, String> {
    let mut done = Done::new();
    for (name, shipped, lines) in scripts(pbs.scheduler) {
        let path = pbs.mom_priv().join(name);
        let program = around.programs.join(if name.starts_with("prologue") {
            "mps-prologue"
        } else {
            "mps-epilogue"
        });
        if owner(&path) == Owner::Foreign {
            done.left(format!(
                "'{}' is the site's own and stays; add to it:",
                path.display()
            ));
            for line in lines {
                done.left(format!(
                    "    {}",
                    line.replace("PROGRAM", &command(&program, around))
                ));
            }
            continue;
        }
        place(&path, render(shipped, around), SCRIPT_MODE)
            .map_err(|e| format!("cannot write '{}': {e}", path.display()))?;
        done.did(format!("wrote '{}'", path.display()));
    }
    Ok(done)
}

pub(crate) fn uninstall(pbs: &Installation) -> Result<Done, String> {
    let mut done = Done::new();
    for (name, _, _) in scripts(pbs.scheduler) {
        let path = pbs.mom_priv().join(name);
        match owner(&path) {
            Owner::Nobody => {}
            Owner::Foreign if calls_us(&path) => {
                done.left(format!(
                    "'{}' is the site's own: take our lines out of it",
                    path.display()
                ));
            }
            Owner::Foreign => {}
            Owner::Ours => {
                fs::remove_file(&path).map_err(|e| format!("cannot remove '{}': {e}", path.display()))?;
                done.did(format!("removed '{}'", path.display()));
            }
        }
    }
    Ok(done)
}

/// Whether a script names one of our programs.
pub(crate) fn calls_us(path: &Path) -> bool {
    fs::read(path).is_ok_and(|bytes| {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        text.contains("mps-prologue") || text.contains("mps-epilogue")
    })
}

/// A program and its configuration, as a shell reads them.
pub(crate) fn command(program: &Path, around: &Surroundings) -> String {
    let mut words = vec![quoted(&program.display().to_string())];
    words.extend(
        config_option(around.config.as_deref())
            .iter()
            .map(|word| quoted(word)),
    );
    words.join(" ")
}

/// The shipped text with this installation's programs and configuration.
pub(crate) fn render(shipped: &str, around: &Surroundings) -> String {
    let mut directory = around.programs.display().to_string();
    if !directory.ends_with('/') {
        directory.push('/');
    }
    let option: String = config_option(around.config.as_deref())
        .iter()
        .map(|word| format!(" {}", quoted(word)))
        .collect();
    shipped
        .replace(SHIPPED, &directory)
        .replace(" --scheduler", &format!("{option} --scheduler"))
        .replace(" exec --starter", &format!("{option} exec --starter"))
}

/// A word that the shell takes as it is; quoted when it holds anything but plain characters.
fn quoted(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'.' | b'-' | b'_');
    if word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Writes a file whole: beside it, then over it.
pub(crate) fn place(path: &Path, text: impl AsRef<[u8]>, mode: u32) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".mpsd-new");
    let beside = PathBuf::from(name);
    match fs::remove_file(&beside) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)?;
    let written = file
        .write_all(text.as_ref())
        .and_then(|()| file.set_permissions(fs::Permissions::from_mode(mode)))
        .and_then(|()| file.sync_all());
    drop(file);
    let placed = written.and_then(|()| fs::rename(&beside, path));
    if placed.is_err() {
        // Half a script helps nobody; the error that is told is the first one.
        let _ = fs::remove_file(&beside);
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn around(programs: &str, config: Option<&str>) -> Surroundings {
        let config = config.map(PathBuf::from);
        let (state, deadline) = (PathBuf::from("/var/lib/mpsd"), Duration::from_secs(20));
        Surroundings {
            site: Default::default(),
            programs: programs.into(),
            config,
            state,
            deadline,
            unattached: mpsd_core::config::UnattachedTasks::Refuse,
        }
    }

    #[test]
    fn shipped_scripts_are_ours_and_usual_places_change_nothing() {
        for scheduler in [Scheduler::Torque, Scheduler::OpenPbs] {
            for (name, text, _) in scripts(scheduler) {
                assert!(text.lines().nth(1).unwrap().starts_with(TAG), "{name}");
                assert_eq!(render(text, &around("/usr/bin", None)), text, "{name}");
            }
        }
    }

    #[test]
    fn other_places_are_filled_in_and_quoted() {
        let text = render(
            TORQUE_PROLOGUE,
            &around("/opt/mpsd/bin", Some("/etc/my site.toml")),
        );
        assert!(text.contains(
            "exec /opt/mpsd/bin/mps-prologue --config '/etc/my site.toml' --scheduler torque \"$@\""
        ));
        assert!(!text.contains("/usr/bin"));
    }

    #[test]
    fn a_file_without_our_tag_is_foreign() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("prologue");
        assert_eq!(owner(&path), Owner::Nobody);
        fs::write(&path, "#!/bin/sh\nexit 0\n").unwrap();
        assert_eq!(owner(&path), Owner::Foreign);
        place(&path, TORQUE_PROLOGUE, SCRIPT_MODE).unwrap();
        assert_eq!(owner(&path), Owner::Ours);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o7777,
            SCRIPT_MODE
        );
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/nowhere", &path).unwrap();
        assert_eq!(owner(&path), Owner::Foreign, "a dangling link is somebody's");
    }
}
