//! The shipped scripts and whose a file is.

use super::*;
use crate::scheduler::host::ThisHost;
use crate::scheduler::{openpbs, torque};
use std::os::unix::fs::PermissionsExt;

fn around<'a>(programs: &'a str, config: Option<&'a str>) -> Surroundings<'a> {
    Surroundings {
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
    assert!(
        text.contains(
            "exec /opt/mpsd/bin/mps-prologue --config '/etc/my site.toml' --scheduler torque \"$@\""
        )
    );
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
