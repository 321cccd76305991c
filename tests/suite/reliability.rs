//! README's figures are those that recorded runs wrote.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
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

/// `14,562`
fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let parts: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|part| std::str::from_utf8(part).expect("digits"))
        .collect();
    parts.join(",")
}

#[test]
fn readmes_table_has_the_recorded_figures() {
    let figures = figures();
    let matrices = |name| count(&figures, "matrices", name);
    let expected = [
        (
            "crash points",
            matrices("crash_points") + matrices("crash_point_pairs"),
        ),
        ("calls that fail", matrices("failed_calls")),
        ("kills of real processes", matrices("real_kills")),
        ("faults", matrices("faults")),
        ("jobs in one soak", count(&figures, "soak", "cycles")),
        ("fuzz executions", count(&figures, "fuzz", "executions")),
    ];
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    let table = readme
        .split("## Reliability")
        .nth(1)
        .expect("a section '## Reliability'");
    let table = table.split("\n## ").next().unwrap_or(table);
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| Tried"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), expected.len(), "{rows:?}");
    for ((name, number), row) in expected.iter().zip(rows) {
        assert!(row[0].starts_with(name), "{row:?}, expected '{name}'");
        assert_eq!(row[1..], [with_commas(*number).as_str(), "0"], "{name}");
    }
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

#[test]
fn readmes_measured_times_are_those_of_the_committed_results() {
    let root = root();
    let readme = fs::read_to_string(root.join("README.md")).expect("README.md");
    let shows = |text: String| assert!(readme.contains(&text), "README.md does not say '{text}'");
    let file = "tests/hardware/results/2026-11-21-nvidia-h200.toml";
    let result: Table = toml::from_str(&fs::read_to_string(root.join(file)).expect(file)).expect("TOML");
    let times = &result["times"];
    // `median 264.91 ms, quartiles ...`
    let median = |name: &str| {
        let spread = times[name].as_str().expect("a spread");
        let word = spread.split(' ').nth(1).expect("its median");
        word.parse::<f64>().expect("milliseconds")
    };
    let ratio = times["ratio_of_medians"].as_float().expect("a ratio");
    shows(format!(
        "shortest possible means | {:.0} ms |",
        median("floor_ms_spread")
    ));
    shows(format!(
        "pairs | {:.0} ms, {ratio:.2} of that |",
        median("prologue_ms_spread")
    ));
    shows(format!(
        "gone and proved | {:.0} ms |",
        median("epilogue_ms_spread")
    ));
    shows(format!("did not ask | {:.1} ms |", median("not_asked_ms_spread")));
    let file = "tests/slurm/results/2026-11-21-bench-srun.json";
    let bench: Value = serde_json::from_str(&fs::read_to_string(root.join(file)).expect(file)).expect("JSON");
    let at = |place: &str| bench.pointer(place).and_then(Value::as_f64).expect("a median");
    for setting in 0..2 {
        let side = |side: &str| at(&format!("/settings/{setting}/{side}/median"));
        shows(format!("| {:.0} ms | {:.0} ms |", side("without"), side("with")));
    }
    let waits = |name: &str| at(&format!("/mps/{name}/median"));
    shows(format!("takes {:.0} ms where the tasks wait", waits("wait_task")));
    shows(format!("{:.0} ms where the prolog does", waits("wait_prolog")));
}
