//! Where the time of a begin and of an end goes: by the stamps, in milliseconds, that NVIDIA's daemon and server write into their
//! log, for the floor and for ours alike.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::result::{hundredths, median};

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

/// How long each step took, milliseconds: from one point to the next.
pub type Steps = Vec<(&'static str, f64)>;

/// The steps of a begin between two moments; none if the log lacks a point.
pub fn begin(log: &[String], from: SystemTime, to: SystemTime) -> Steps {
    steps(&BEGIN, log.iter(), from, to).unwrap_or_default()
}

/// Those of an end.
pub fn end(log: &[String], from: SystemTime, to: SystemTime) -> Steps {
    // Stamps are cut to the millisecond.
    let begin = since_quarter(from) - 1.0;
    let length = (since_quarter(to) - begin).rem_euclid(QUARTER);
    let its = |line: &&String| stamp(line).is_some_and(|at| (at - begin).rem_euclid(QUARTER) <= length);
    steps(&END, log.iter().filter(its), from, to).unwrap_or_default()
}

fn steps<'a>(
    points: &[(&'static str, &str)],
    log: impl DoubleEndedIterator<Item = &'a String> + Clone,
    from: SystemTime,
    to: SystemTime,
) -> Option<Steps> {
    let mut reached = since_quarter(from);
    let mut steps = Steps::new();
    let mut step = |name, at| {
        steps.push((name, span(reached, at)));
        reached = at;
    };
    let mut at_last = None;
    for (name, says) in points {
        let at = stamp(log.clone().find(|line| line.contains(says))?)?;
        step(name, at);
        at_last = Some(at);
    }
    let last = log.rev().find_map(|line| stamp(line));
    if let Some(last) = last.filter(|last| Some(*last) != at_last) {
        step("last_line", last);
    }
    step("return", since_quarter(to));
    Some(steps)
}

/// The median of each step.
pub fn medians<'a>(all: impl Iterator<Item = &'a Steps>) -> Steps {
    let mut steps: Vec<(&str, Vec<f64>)> = Vec::new();
    for (name, value) in all.flatten() {
        match steps.iter_mut().find(|(known, _)| known == name) {
            Some((_, values)) => values.push(*value),
            None => steps.push((name, vec![*value])),
        }
    }
    let median = |(name, values): (_, Vec<f64>)| (name, median(&values));
    steps.into_iter().map(median).collect()
}

/// Milliseconds from one moment of a quarter to another.
fn span(from: f64, to: f64) -> f64 {
    let length = (to - from).rem_euclid(QUARTER);
    // A stamp is cut to the millisecond: what it tells may be a little before the moment that it follows.
    let length = if length > QUARTER - 1000.0 { 0.0 } else { length };
    hundredths(length)
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

    fn log(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    fn values(steps: Steps) -> Vec<f64> {
        steps.into_iter().map(|(_, value)| value).collect()
    }

    #[test]
    fn steps_are_counted_from_one_point_to_the_next_over_the_full_hour() {
        let log = log(&[
            "[2026-11-22 07:59:59.990 Control   441] Starting control daemon using socket /x",
            "[2026-11-22 07:59:59.992 Control   449] Starting new server 449 for user 65534",
            "[2026-11-22 07:59:59.995 Other   449] Startup",
            "[2026-11-22 08:00:00.145 Control   441] NEW SERVER 449: Ready",
            "[2026-11-22 08:00:00.146 Server   449] Server has started",
        ]);
        let at = |ms: u64| UNIX_EPOCH + Duration::from_millis(7 * 3_600_000 + ms);
        let steps = begin(&log, at(3_599_980), at(3_600_150));
        let names: Vec<&str> = steps.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            names,
            ["daemon", "asked", "server", "ready", "last_line", "return"]
        );
        assert_eq!(values(medians([steps].iter())), [10.0, 2.0, 3.0, 150.0, 1.0, 4.0]);
    }

    #[test]
    fn a_zone_that_is_half_an_hour_off_changes_nothing() {
        let log = log(&[
            "[2026-11-22 13:29:59.990 Control   441] NEW UI",
            "[2026-11-22 13:30:00.020 Control   441] Cmd:quit",
        ]);
        let at = |ms: u64| UNIX_EPOCH + Duration::from_millis(8 * 3_600_000 - 30 + ms);
        assert_eq!(values(end(&log, at(0), at(60))), [20.0, 30.0, 10.0]);
    }

    #[test]
    fn an_end_looks_at_its_own_lines_alone() {
        let log = log(&[
            "[2026-11-22 07:10:01.000 Control   441] NEW UI",
            "[2026-11-22 07:10:02.010 Control   441] NEW UI",
            "[2026-11-22 07:10:02.020 Control   441] Cmd:quit",
            "[2026-11-22 07:10:02.090 Server   449] Exit",
        ]);
        let at = |ms: u64| UNIX_EPOCH + Duration::from_millis(602_000 + ms);
        assert_eq!(values(end(&log, at(0), at(100))), [10.0, 10.0, 70.0, 10.0]);
    }
}
