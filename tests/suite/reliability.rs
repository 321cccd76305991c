//! The recorded runs behind README's figures; `cargo xtask readme` writes the figures, and a test of it compares them.

use std::fs;
use std::path::{Path, PathBuf};

use tests::fuzzing::TARGETS;
use toml::Table;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("workspace")
        .to_owned()
}

fn figures() -> Table {
    let file = root().join("tests/reliability/figures.toml");
    toml::from_str(&fs::read_to_string(file).expect("figures")).expect("TOML")
}

fn count(figures: &Table, section: &str, name: &str) -> u64 {
    let count = figures
        .get(section)
        .and_then(|s| s.get(name))
        .and_then(|v| v.as_integer());
    u64::try_from(count.unwrap_or_else(|| panic!("no {section}.{name}"))).expect("a count")
}

#[test]
fn the_recorded_runs_were_whole_and_lost_nothing() {
    let figures = figures();
    let soak = |name| count(&figures, "soak", name);
    assert!(soak("cycles") >= 2000 && soak("at_once") >= 16, "{figures}");
    assert_eq!((soak("lost"), soak("different")), (0, 0), "{figures}");
    assert!(soak("grown_kb") < 512, "{figures}");
    let fuzz = |name| count(&figures, "fuzz", name);
    assert!(fuzz("seconds_each") >= 60, "{figures}");
    let all: u64 = TARGETS.iter().map(|(name, _)| fuzz(name)).sum();
    assert_eq!(all, fuzz("executions"), "every target, and no other: {figures}");
}
