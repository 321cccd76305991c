//! The classic scripts in `mom_priv`: written where none stands, replaced where ours stands, else left alone.

use super::installation::Installation;
use crate::scheduler::setup::{SetupContext, VerbReport, ensure, remove};
use std::fs;
use std::io;
use std::path::Path;

/// The line that makes a script ours.
pub(crate) const TAG: &str = "# mpsd: written by 'mpsctl pbs install";
/// What pbs_mom demands and no more: root reads and runs it.
const SCRIPT_MODE: u32 = 0o500;
/// Where our programs stand in the shipped texts, and what we keep of jobs.
const SHIPPED: &str = "/usr/bin/";
const SHIPPED_RUN: &str = "/run/mpsd/";

/// A script of ours for a mom.
#[derive(Debug)]
pub(crate) struct Script {
    /// Its names in `mom_priv`.
    pub names: &'static [&'static str],
    /// Its text as shipped.
    pub text: &'static str,
    /// The program that it calls.
    pub program: &'static str,
    /// The line for a site that has a script of its own, with `PROGRAM` for the program, and where it belongs.
    pub lines: [&'static str; 2],
}

/// Each script under each of its names.
pub(crate) fn named(scripts: &[Script]) -> impl Iterator<Item = (&Script, &'static str)> {
    scripts
        .iter()
        .flat_map(|script| script.names.iter().map(move |name| (script, *name)))
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

/// Writes `scripts`, where no other stands.
pub(crate) fn install(
    pbs: &Installation,
    scripts: &[Script],
    around: &SetupContext<'_>,
) -> Result<VerbReport, String> {
    let mut done = VerbReport::default();
    for (script, name) in named(scripts) {
        let path = pbs.mom_priv().join(name);
        let shown = path.display();
        let foreign = owner(&path) == Owner::Foreign;
        if foreign && calls_us(&path) {
            done.did(format!("'{shown}' is the site's own and calls us"));
            continue;
        }
        if foreign {
            let call = command(&around.programs.join(script.program), around);
            done.left(format!("'{shown}' is the site's own and stays; add to it:"));
            for line in script.lines {
                done.left(format!("    {}", line.replace("PROGRAM", &call)));
            }
            continue;
        }
        done.did(match ensure(&path, render(script.text, around), SCRIPT_MODE)? {
            true => format!("wrote '{shown}'"),
            false => format!("'{shown}' is ours"),
        });
    }
    Ok(done)
}

/// Removes those that are ours.
pub(crate) fn uninstall(pbs: &Installation, scripts: &[Script]) -> Result<VerbReport, String> {
    let mut done = VerbReport::default();
    for path in named(scripts).map(|(_, name)| pbs.mom_priv().join(name)) {
        match owner(&path) {
            Owner::Ours => remove(&path, &mut done)?,
            Owner::Foreign if calls_us(&path) => {
                let shown = path.display();
                done.left(format!("'{shown}' is the site's own: take our lines out of it"));
            }
            Owner::Foreign | Owner::Nobody => {}
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
pub(crate) fn command(program: &Path, around: &SetupContext<'_>) -> String {
    let mut words = vec![quoted(&program.display().to_string())];
    words.extend(config_option(around).iter().map(|word| quoted(word)));
    words.join(" ")
}

/// The shipped text with this installation's programs, configuration and directories.
pub(crate) fn render(shipped: &str, around: &SetupContext<'_>) -> String {
    let mut directory = around.programs.display().to_string();
    if !directory.ends_with('/') {
        directory.push('/');
    }
    let option: String = config_option(around)
        .iter()
        .map(|word| format!(" {}", quoted(word)))
        .collect();
    let run = around.settings.paths.run().display().to_string();
    shipped
        .replace(SHIPPED, &directory)
        .replace(SHIPPED_RUN, &format!("{}/", quoted(&run)))
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

/// The arguments that our programs need to find their configuration.
pub(crate) fn config_option(around: &SetupContext<'_>) -> Vec<String> {
    let option = |path: &Path| vec!["--config".to_owned(), path.display().to_string()];
    around.config.map(option).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    //! The shipped scripts and whose a file is.

    use super::*;
    use crate::scheduler::host::ThisHost;
    use crate::scheduler::{openpbs, torque};
    use std::os::unix::fs::PermissionsExt;

    fn around<'a>(programs: &'a str, config: Option<&'a str>) -> SetupContext<'a> {
        SetupContext {
            config: config.map(Path::new),
            settings: mpsd_core::config::Settings::usual(),
            broken: None,
            programs: Path::new(programs),
            host: &ThisHost,
            inventory: &|_| Err(mpsd_core::Undetermined::new("NVML", "not asked").into()),
            standing: &|_| Vec::new(),
        }
    }

    #[test]
    fn shipped_scripts_are_ours_and_usual_places_change_nothing() {
        for script in torque::setup::SCRIPTS.iter().chain(&openpbs::setup::SCRIPTS) {
            let (name, text) = (script.names[0], script.text);
            assert!(text.lines().nth(1).unwrap().starts_with(TAG), "{name}");
            assert_eq!(render(text, &around("/usr/bin", None)), text, "{name}");
        }
    }

    #[test]
    fn other_places_are_filled_in_and_quoted() {
        let text = render(
            torque::setup::SCRIPTS[0].text,
            &around("/opt/mpsd/bin", Some("/etc/my site.toml")),
        );
        assert!(text.contains(
            "exec /opt/mpsd/bin/mps-prologue --config '/etc/my site.toml' --scheduler torque $gone \"$@\""
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
        crate::scheduler::setup::place(&path, torque::setup::SCRIPTS[0].text, SCRIPT_MODE).unwrap();
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
