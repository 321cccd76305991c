//! Compares runs of SchedMD's own test suite: on a Slurm without us, with the plugin, and in an
//! auto partition.
//!
//! A run is what `regression.py -t` and `run-tests-python --no-color --color=no --durations=0` of
//! Slurm's testsuite/ printed, in one file or several joined. The suite itself is not ours, and
//! runs outside this repository.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use fs_err as fs;

/// What a test may take longer: the larger of a second and a fifth. Less is noise between two runs
/// without us.
const LONGER_S: f64 = 1.0;
const LONGER_PART: f64 = 0.2;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// The log of the run without us
    #[arg(value_parser = absolute)]
    without: PathBuf,
    /// Logs of the runs that are compared with it
    #[arg(required = true, value_parser = absolute)]
    others: Vec<PathBuf>,
}

/// One result of a test. A log may have several rounds.
#[derive(Clone, Debug, Default, PartialEq)]
struct Round {
    /// `pass`, `fail` or `skip`.
    status: String,
    seconds: Option<f64>,
}

type Run = BTreeMap<String, Vec<Round>>;

/// The path from where the command was given: an xtask runs in the root of the repository.
fn absolute(path: &str) -> std::io::Result<PathBuf> {
    std::path::absolute(path)
}

/// Prints each difference: what no round of one run has in common with a round of the other. Fails
/// if there is one.
pub fn compare(options: &Options) -> Result<()> {
    let without = read(&options.without)?;
    let mut found = 0;
    for other in &options.others {
        let differences = differences(&without, &read(other)?);
        let name = other.display();
        let (tests, differ) = (without.len(), differences.len());
        println!("{name}: {tests} tests, {differ} differ");
        for difference in &differences {
            println!("  {difference}");
        }
        found += differences.len();
    }
    let without = options.without.display();
    ensure!(found == 0, "{found} differences from '{without}'");
    Ok(())
}

fn read(file: &PathBuf) -> Result<Run> {
    let run = parse(&fs::read_to_string(file)?);
    if run.is_empty() {
        bail!(
            "'{}' has no result of a test: it needs the output of regression.py -t or run-tests-python",
            file.display()
        );
    }
    Ok(run)
}

fn parse(text: &str) -> Run {
    let mut run = Run::new();
    for line in text.lines() {
        if let Some((name, round)) = expect(line) {
            run.entry(name).or_default().push(round);
        } else if let Some((name, status)) = python(line) {
            let rounds = run.entry(name).or_default();
            // The durations come after all words about a round.
            rounds.pop_if(|round| round.seconds.is_none());
            rounds.push(Round {
                status: status.to_owned(),
                seconds: None,
            });
        } else if let Some((name, seconds)) = duration(line)
            && let Some(round) = run.get_mut(&name).and_then(|rounds| rounds.last_mut())
        {
            *round.seconds.get_or_insert(0.0) += seconds;
        }
    }
    run
}

/// `Running test 1.119 1 min 3.05 sec FAILED!`; a test that passed has no last word.
fn expect(line: &str) -> Option<(String, Round)> {
    let words = line.strip_prefix("Running test ")?.split_whitespace();
    let words: Vec<&str> = words.collect();
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
    let minutes = before("min").unwrap_or_default();
    let round = Round {
        status: status.into(),
        seconds: before("sec").map(|seconds| 60.0 * minutes + seconds),
    };
    Some((format!("test{name}"), round))
}

/// A line of the summary: `FAILED tests/test_100_1.py::test_it[a b] - why`. The last line of a test
/// is the worst.
fn python(line: &str) -> Option<(String, &'static str)> {
    let (status, rest) = line.split_once(' ')?;
    let status = match status {
        "PASSED" | "XPASS" => "pass",
        "FAILED" | "ERROR" => "fail",
        "SKIPPED" | "XFAIL" => "skip",
        _ => return None,
    };
    let name = rest.split(" - ").next().unwrap_or_default().trim_end();
    name.contains(".py").then(|| (name.to_owned(), status))
}

/// `3.05s call     tests/test_100_1.py::test_it`
fn duration(line: &str) -> Option<(String, f64)> {
    let mut words = line.split_whitespace();
    let seconds = words.next()?.strip_suffix('s')?.parse().ok()?;
    let phase = words.next()?;
    let name = line.get(line.find(phase)? + phase.len()..)?.trim();
    let is_one = name.contains(".py::") && ["setup", "call", "teardown"].contains(&phase);
    is_one.then(|| (name.to_owned(), seconds))
}

fn differences(without: &Run, other: &Run) -> Vec<String> {
    let names: BTreeSet<&String> = without.keys().chain(other.keys()).collect();
    let of = |name: &String| {
        let [one, two] = [without, other].map(|run| run.get(name).map_or(&[][..], Vec::as_slice));
        let common = |round: &&Round| one.iter().any(|own| own.status == round.status);
        if !two.iter().any(|round| common(&round)) {
            let [one, two] = [one, two].map(statuses);
            return Some(format!("{name}: {one} without us, here {two}"));
        }
        let slowest = one.iter().filter_map(|round| round.seconds);
        let slowest = slowest.reduce(f64::max)?;
        let fastest = two.iter().filter_map(|round| round.seconds);
        let fastest = fastest.reduce(f64::min)?;
        let slower = fastest - slowest > LONGER_S.max(slowest * LONGER_PART);
        slower.then(|| format!("{name}: {slowest:.1} s without us, here {fastest:.1} s"))
    };
    names.into_iter().filter_map(of).collect()
}

fn statuses(rounds: &[Round]) -> String {
    let all: BTreeSet<&str> = rounds.iter().map(|round| round.status.as_str()).collect();
    match all.is_empty() {
        true => "did not run".to_owned(),
        false => all.into_iter().collect::<Vec<_>>().join(" or "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHOUT: &str = "Started: now\n\
        Running test 1.1 3.05 sec \n\
        Running test 1.119 2.00 sec \n\
        Running test 3.18 10.00 sec SKIPPED\n\
        Running test 39.13 1 min 25.00 sec \n\
        tests/test_100_1.py::test_it \n\
        [2026-11-27 15:10:00.100] DEBUG    Running command: true\n\
        PASSED\n\
        ==================== summary ====================\n\
        PASSED tests/test_100_1.py::test_it\n\
        PASSED tests/test_100_9.py::test_its_end_fails\n\
        SKIPPED tests/test_100_2.py::test_or[a b] - needs a - b\n\
        ERROR tests/test_100_9.py::test_its_end_fails - a job is left\n\
        ================ slowest durations ==============\n\
        4.00s call     tests/test_100_1.py::test_it\n\
        1.00s setup    tests/test_100_1.py::test_it\n\
        2.00s teardown tests/test_100_2.py::test_or[a b]\n";

    #[test]
    fn a_run_is_read_in_both_forms() {
        let run = parse(WITHOUT);
        let test = |name: &str| match &run.get(name)?[..] {
            [round] => Some((round.status.as_str(), round.seconds)),
            several => panic!("{several:?}"),
        };
        assert_eq!(run.len(), 7, "{run:?}");
        assert_eq!(test("test1.1"), Some(("pass", Some(3.05))));
        assert_eq!(test("test3.18"), Some(("skip", Some(10.0))));
        assert_eq!(test("test39.13"), Some(("pass", Some(85.0))));
        assert_eq!(
            test("tests/test_100_1.py::test_it"),
            Some(("pass", Some(5.0)))
        );
        assert_eq!(
            test("tests/test_100_2.py::test_or[a b]"),
            Some(("skip", Some(2.0)))
        );
        assert_eq!(
            test("tests/test_100_9.py::test_its_end_fails"),
            Some(("fail", None))
        );
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
            (
                "1.1 3.05",
                "1.1 4.10",
                "test1.1: 3.0 s without us, here 4.1 s",
            ),
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
                "PASSED tests/test_100_1",
                "ERROR tests/test_100_1",
                "tests/test_100_1.py::test_it: pass without us, here fail",
            ),
        ] {
            assert_eq!(with(from, to), [told]);
        }
        // A second round of either run agrees with the other.
        for (from, to) in [
            ("119 2.00 sec ", "119 2.00 sec FAILED!"),
            ("4.00s call", "9.00s call"),
        ] {
            let changed = parse(&WITHOUT.replace(from, to));
            let both = parse(&(WITHOUT.to_owned() + &WITHOUT.replace(from, to)));
            let none = Vec::<String>::new();
            assert_eq!(
                [differences(&both, &changed), differences(&without, &both)],
                [none.clone(), none]
            );
        }
        // Noise, and faster.
        for (from, to) in [
            ("1.1 3.05", "1.1 4.04"),
            ("25.00 sec", "41.00 sec"),
            ("25.00 sec", "1.00 sec"),
        ] {
            assert_eq!(with(from, to), Vec::<String>::new());
        }
    }
}
