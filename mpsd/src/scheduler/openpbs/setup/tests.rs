//! The hook as it is filled in.

use super::*;

#[test]
fn the_hook_is_filled_in_and_nothing_else_changes() {
    let around = Surroundings {
        config: Some(Path::new("/etc/a \"b\".toml")),
        settings: mpsd_core::config::Settings::usual(),
        broken: None,
        programs: Path::new("/opt/m/bin"),
        host: &crate::scheduler::host::ThisHost,
        inventory: &|_| Err(mpsd_core::Undetermined::new("NVML", "not asked").into()),
        standing: &|_| Vec::new(),
    };
    let text = render(&around).unwrap();
    let changed: Vec<&str> = text
        .lines()
        .filter(|line| !HOOK.lines().any(|other| other == *line))
        .collect();
    assert_eq!(
        changed,
        [
            "PROGRAMS = \"/opt/m/bin\"",
            "OPTIONS = [\"--config\",\"/etc/a \\\"b\\\".toml\"]",
            "LOOK_AGAIN = \"/run/mpsd/look-again\"",
            "LIMIT_S = 25"
        ]
    );
}
