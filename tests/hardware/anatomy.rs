//! Where the time of a begin and of an end goes: by the stamps, in milliseconds, that NVIDIA's daemon and server write into their
//! log, for the floor and for ours alike.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::result::{Section, Spread, times};

/// Milliseconds of a quarter of an hour: stamps are in the machine's own time, and zones differ by quarters.
const QUARTER: f64 = 900_000.0;

/// The points of a begin: what the log says there.
const BEGIN: [(&str, &str); 4] = [
    ("daemon", "Starting control daemon"),
    ("asked", "Starting new server"),
    ("server", "Startup"),
    ("ready", ": Ready"),
];

/// Those of an end.
const END: [(&str, &str); 2] = [("first_session", "NEW UI"), ("quit", "Cmd:quit")];

/// How long each step of some begins, or ends, took, milliseconds: from one point to the next.
#[derive(Debug, Default)]
pub struct Steps {
    steps: Vec<(&'static str, Vec<f64>)>,
    /// The last log, its stamps counted from the beginning.
    last: Vec<String>,
}

impl Steps {
    /// Takes in a begin between two moments.
    pub fn begun(&mut self, log: &[String], from: SystemTime, to: SystemTime) {
        self.take(&BEGIN, log, from, to);
    }

    /// Takes in an end.
    pub fn ended(&mut self, log: &[String], from: SystemTime, to: SystemTime) {
        // Stamps are cut to the millisecond.
        let begin = since_quarter(from) - 1.0;
        let length = (since_quarter(to) - begin).rem_euclid(QUARTER);
        let its = |line: &&String| stamp(line).is_some_and(|at| (at - begin).rem_euclid(QUARTER) <= length);
        let its: Vec<String> = log.iter().filter(its).cloned().collect();
        self.take(&END, &its, from, to);
    }

    fn take(&mut self, points: &[(&'static str, &str)], log: &[String], from: SystemTime, to: SystemTime) {
        let begin = since_quarter(from);
        let mut reached = begin;
        let mut steps = Vec::new();
        for (name, says) in points {
            let found = log
                .iter()
                .find(|line| line.contains(says))
                .and_then(|line| stamp(line));
            let Some(at) = found else { return };
            steps.push((*name, span(reached, at)));
            reached = at;
        }
        if let Some(last) = log
            .iter()
            .rev()
            .find_map(|line| stamp(line))
            .filter(|last| *last != reached)
        {
            steps.push(("last_line", span(reached, last)));
            reached = last;
        }
        steps.push(("return", span(reached, since_quarter(to))));
        for (name, value) in steps {
            match self.steps.iter_mut().find(|(known, _)| *known == name) {
                Some((_, values)) => values.push(value),
                None => self.steps.push((name, vec![value])),
            }
        }
        self.last = log
            .iter()
            .filter_map(|line| {
                Some(format!(
                    "{:8.1} {}",
                    span(begin, stamp(line)?),
                    line.split_once("] ")?.1
                ))
            })
            .collect();
    }

    /// The medians, and the last log.
    pub fn record(&self, section: &mut Section, name: &str) {
        for (step, values) in &self.steps {
            if let Some(spread) = Spread::of(values) {
                section.fact(&format!("{name}_step_{step}_ms"), spread.median);
                section.fact(&format!("{name}_step_{step}_all"), times(values));
            }
        }
        section.fact(&format!("{name}_log"), self.last.join("\n"));
    }
}

/// The lines of a log.
pub fn lines(file: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read '{}'", file.display()))?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Milliseconds from one moment of a quarter to another.
fn span(from: f64, to: f64) -> f64 {
    let length = (to - from).rem_euclid(QUARTER);
    // A stamp is cut to the millisecond: what it tells may be a little before the moment that it follows.
    let length = if length > QUARTER - 1000.0 { 0.0 } else { length };
    (length * 100.0).round() / 100.0
}

fn since_quarter(at: SystemTime) -> f64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs_f64() * 1000.0).rem_euclid(QUARTER)
}

/// The moment in `[2026-11-22 07:47:23.040 Control   441] …`, milliseconds of its hour.
fn stamp(line: &str) -> Option<f64> {
    let clock = line.strip_prefix('[')?.split(' ').nth(1)?;
    let mut parts = clock.split(':').skip(1);
    let (minutes, seconds): (f64, f64) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((minutes * 60.0 + seconds) * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn names(steps: &Steps) -> Vec<&str> {
        steps.steps.iter().map(|(name, _)| *name).collect()
    }

    fn values(steps: &Steps) -> Vec<f64> {
        steps
            .steps
            .iter()
            .flat_map(|(_, values)| values.clone())
            .collect()
    }

    #[test]
    fn steps_are_counted_from_one_point_to_the_next_over_the_full_hour() {
        let log: Vec<String> = [
            "[2026-11-22 07:59:59.990 Control   441] Starting control daemon using socket /x",
            "[2026-11-22 07:59:59.992 Control   449] Starting new server 449 for user 65534",
            "[2026-11-22 07:59:59.995 Other   449] Startup",
            "[2026-11-22 08:00:00.145 Control   441] NEW SERVER 449: Ready",
            "[2026-11-22 08:00:00.146 Server   449] Server has started",
        ]
        .map(str::to_owned)
        .to_vec();
        let at = |ms: u64| UNIX_EPOCH + Duration::from_millis(7 * 3_600_000 + ms);
        let mut steps = Steps::default();
        steps.begun(&log, at(3_599_980), at(3_600_150));
        assert_eq!(
            names(&steps),
            ["daemon", "asked", "server", "ready", "last_line", "return"]
        );
        assert_eq!(values(&steps), [10.0, 2.0, 3.0, 150.0, 1.0, 4.0]);
        assert_eq!(steps.last[1], "    12.0 Starting new server 449 for user 65534");
    }

    #[test]
    fn a_zone_that_is_half_an_hour_off_changes_nothing() {
        let log: Vec<String> = [
            "[2026-11-22 13:29:59.990 Control   441] NEW UI",
            "[2026-11-22 13:30:00.020 Control   441] Cmd:quit",
        ]
        .map(str::to_owned)
        .to_vec();
        let at = |ms: u64| UNIX_EPOCH + Duration::from_millis(8 * 3_600_000 - 30 + ms);
        let mut steps = Steps::default();
        steps.ended(&log, at(0), at(60));
        assert_eq!(values(&steps), [20.0, 30.0, 10.0]);
    }

    #[test]
    fn an_end_looks_at_its_own_lines_alone() {
        let log: Vec<String> = [
            "[2026-11-22 07:10:01.000 Control   441] NEW UI",
            "[2026-11-22 07:10:02.010 Control   441] NEW UI",
            "[2026-11-22 07:10:02.020 Control   441] Cmd:quit",
            "[2026-11-22 07:10:02.090 Server   449] Exit",
        ]
        .map(str::to_owned)
        .to_vec();
        let at = |ms: u64| UNIX_EPOCH + Duration::from_millis(602_000 + ms);
        let mut steps = Steps::default();
        steps.ended(&log, at(0), at(100));
        assert_eq!(values(&steps), [10.0, 10.0, 70.0, 10.0]);
    }
}
