//! Compares runs of SchedMD's own test suite: on a Slurm without us, with the plugin, and in an auto partition.
//!
//! A run is what `regression.py -t` and `pytest -v --durations=0` of Slurm's testsuite/ printed, in one file or several
//! joined. The suite itself is not ours, and runs outside this repository.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};

/// What a test may take longer: the larger of a second and a fifth. Less is noise between two runs without us.
const LONGER_S: f64 = 1.0;
const LONGER_PART: f64 = 0.2;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// The log of the run without us
    without: PathBuf,
    /// Logs of the runs that are compared with it
    #[arg(required = true)]
    others: Vec<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Test {
    /// `pass`, `fail` or `skip`; empty before it is known.
    status: String,
    seconds: Option<f64>,
}

type Run = BTreeMap<String, Test>;

/// Prints each difference. Fails if there is one.
pub fn compare(options: &Options) -> Result<()> {
    let without = read(&options.without)?;
    let mut found = 0;
    for other in &options.others {
        let differences = differences(&without, &read(other)?);
        let name = other.display();
        println!("{name}: {} tests, {} differ", without.len(), differences.len());
        differences
            .iter()
            .for_each(|difference| println!("  {difference}"));
        found += differences.len();
    }
    ensure!(
        found == 0,
        "{found} differences from '{}'",
        options.without.display()
    );
    Ok(())
}

fn read(file: &PathBuf) -> Result<Run> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read '{}'", file.display()))?;
    let run = parse(&text);
    if run.is_empty() {
        bail!(
            "'{}' has no result of a test: it needs the output of regression.py -t or pytest -v",
            file.display()
        );
    }
    Ok(run)
}

fn parse(text: &str) -> Run {
    let mut run = Run::new();
    for line in text.lines() {
        if let Some((name, test)) = expect(line) {
            run.insert(name, test);
        } else if let Some((name, status)) = python(line) {
            run.entry(name).or_default().status = status.to_owned();
        } else if let Some((name, seconds)) = duration(line) {
            *run.entry(name).or_default().seconds.get_or_insert(0.0) += seconds;
        }
    }
    run.retain(|_, test| !test.status.is_empty());
    run
}

/// `Running test 1.119 1 min 3.05 sec FAILED!`; a test that passed has no last word.
fn expect(line: &str) -> Option<(String, Test)> {
    let words: Vec<&str> = line.strip_prefix("Running test ")?.split_whitespace().collect();
    let (name, rest) = words.split_first()?;
    let before = |unit: &str| {
        let at = rest.iter().position(|word| *word == unit)?;
        rest.get(at.checked_sub(1)?)?.parse::<f64>().ok()
    };
    let status = match rest.last().copied().unwrap_or_default() {
        "FAILED!" => "fail",
        "SKIPPED" => "skip",
        _ => "pass",
    };
    let test = Test {
        status: status.into(),
        // It prints the seconds beyond the minutes with the minutes in them.
        seconds: before("sec"),
    };
    Some((format!("test{name}"), test))
}

/// `tests/test_100_1.py::test_it PASSED [ 12%]`
fn python(line: &str) -> Option<(String, &'static str)> {
    let mut words = line.split_whitespace();
    let name = words.next().filter(|name| name.contains(".py::"))?;
    let status = match words.next()? {
        "PASSED" | "XPASS" => "pass",
        "FAILED" | "ERROR" => "fail",
        "SKIPPED" | "XFAIL" => "skip",
        _ => return None,
    };
    Some((name.to_owned(), status))
}

/// `3.05s call     tests/test_100_1.py::test_it`
fn duration(line: &str) -> Option<(String, f64)> {
    let mut words = line.split_whitespace();
    let seconds = words.next()?.strip_suffix('s')?.parse().ok()?;
    let phase = words.next()?;
    let name = words.next().filter(|name| name.contains(".py::"))?;
    ["setup", "call", "teardown"]
        .contains(&phase)
        .then(|| (name.to_owned(), seconds))
}

fn differences(without: &Run, other: &Run) -> Vec<String> {
    let names: BTreeSet<&String> = without.keys().chain(other.keys()).collect();
    let of = |name: &String| {
        let none = Test {
            status: "did not run".into(),
            seconds: None,
        };
        let [one, two] = [without, other].map(|run| run.get(name).unwrap_or(&none).clone());
        if one.status != two.status {
            return Some(format!("{name}: {} without us, here {}", one.status, two.status));
        }
        let (one, two) = (one.seconds?, two.seconds?);
        let slower = two - one > LONGER_S.max(one * LONGER_PART);
        slower.then(|| format!("{name}: {one:.1} s without us, here {two:.1} s"))
    };
    names.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHOUT: &str = "Started: now\n\
        Running test 1.1 3.05 sec \n\
        Running test 1.119 2.00 sec \n\
        Running test 3.18 10.00 sec SKIPPED\n\
        Running test 39.13 1 min 85.00 sec \n\
        tests/test_100_1.py::test_it PASSED [ 50%]\n\
        tests/test_100_2.py::test_or[a-b] SKIPPED (why) [100%]\n\
        1.00s setup    tests/test_100_1.py::test_it\n\
        4.00s call     tests/test_100_1.py::test_it\n\
        FAILED tests/test_100_9.py::test_of_the_summary - why\n";

    #[test]
    fn a_run_is_read_in_both_forms() {
        let run = parse(WITHOUT);
        let test = |name: &str| run.get(name).map(|test| (test.status.as_str(), test.seconds));
        assert_eq!(run.len(), 6, "{run:?}");
        assert_eq!(test("test1.1"), Some(("pass", Some(3.05))));
        assert_eq!(test("test3.18"), Some(("skip", Some(10.0))));
        assert_eq!(test("test39.13"), Some(("pass", Some(85.0))));
        assert_eq!(test("tests/test_100_1.py::test_it"), Some(("pass", Some(5.0))));
        assert_eq!(test("tests/test_100_2.py::test_or[a-b]"), Some(("skip", None)));
    }

    #[test]
    fn another_result_a_slower_one_and_a_missing_one_are_differences() {
        let without = parse(WITHOUT);
        let with = |from: &str, to: &str| differences(&without, &parse(&WITHOUT.replace(from, to)));
        assert_eq!(with("", ""), Vec::<String>::new());
        for (from, to, told) in [
            (
                "119 2.00 sec ",
                "119 2.00 sec FAILED!",
                "test1.119: pass without us, here fail",
            ),
            ("1.1 3.05", "1.1 4.10", "test1.1: 3.0 s without us, here 4.1 s"),
            (
                "Running test 3.18",
                "",
                "test3.18: skip without us, here did not run",
            ),
            (
                "4.00s call",
                "9.00s call",
                "tests/test_100_1.py::test_it: 5.0 s without us, here 10.0 s",
            ),
            (
                "it PASSED",
                "it ERROR",
                "tests/test_100_1.py::test_it: pass without us, here fail",
            ),
        ] {
            assert_eq!(with(from, to), [told]);
        }
        // Noise, and faster.
        for (from, to) in [("1.1 3.05", "1.1 4.04"), ("85.00", "99.00"), ("85.00", "1.00")] {
            assert_eq!(with(from, to), Vec::<String>::new());
        }
    }
}
