//! The dated result: sections of facts and checks, as TOML for the repository and as text for the reader.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use toml::{Table, Value};

/// One assertion and what was seen.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    pub name: String,
    pub ok: bool,
    pub seen: String,
}

/// One part of the run.
#[derive(Debug, Clone, Default)]
pub struct Section {
    pub name: &'static str,
    pub facts: Table,
    pub checks: Vec<Check>,
}

impl Section {
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            ..Self::default()
        }
    }

    /// Records a fact.
    pub fn fact(&mut self, key: &str, value: impl Into<Value>) {
        self.facts.insert(key.to_owned(), value.into());
    }

    /// Records some times, milliseconds, and how they spread; nothing where there are none.
    pub fn series(&mut self, key: &str, values: &[f64]) {
        if let Some(spread) = Spread::of(values) {
            self.fact(key, times(values));
            self.fact(&format!("{key}_spread"), spread.text());
        }
    }

    /// Records an assertion; whether it held.
    pub fn check(&mut self, name: impl Into<String>, ok: bool, seen: impl Into<String>) -> bool {
        self.checks.push(Check {
            name: name.into(),
            ok,
            seen: seen.into(),
        });
        ok
    }

    /// Records that `seen` equals `expected`.
    pub fn equal<T: PartialEq + std::fmt::Debug>(
        &mut self,
        name: impl Into<String>,
        seen: &T,
        expected: &T,
    ) -> bool {
        self.check(name, seen == expected, format!("{seen:?}, expected {expected:?}"))
    }

    fn table(&self) -> Table {
        let mut table = self.facts.clone();
        let checks: Vec<Value> = self
            .checks
            .iter()
            .filter_map(|check| Value::try_from(check).ok())
            .collect();
        if !checks.is_empty() {
            table.insert("checks".into(), Value::Array(checks));
        }
        table
    }
}

/// The whole run.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    pub sections: Vec<Section>,
}

impl Outcome {
    /// Checks that held and that did not.
    pub fn counts(&self) -> (usize, usize) {
        let all = || self.sections.iter().flat_map(|section| &section.checks);
        (
            all().filter(|check| check.ok).count(),
            all().filter(|check| !check.ok).count(),
        )
    }

    /// The file for `tests/hardware/results`.
    pub fn toml(&self) -> String {
        let (held, failed) = self.counts();
        let mut table = Table::new();
        table.insert("date".into(), Value::String(now()));
        table.insert("checks_held".into(), Value::Integer(held as i64));
        table.insert("checks_failed".into(), Value::Integer(failed as i64));
        for section in &self.sections {
            table.insert(section.name.into(), Value::Table(section.table()));
        }
        toml::to_string(&table).unwrap_or_else(|e| format!("# the result could not be written: {e}\n"))
    }

    /// The account for the reader.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for section in &self.sections {
            let _ = writeln!(out, "\n{}", section.name);
            for (key, value) in &section.facts {
                let _ = writeln!(out, "  {key}: {}", short(value));
            }
            for check in &section.checks {
                let word = if check.ok { "ok  " } else { "FAIL" };
                let _ = writeln!(out, "  {word} {}: {}", check.name, check.seen);
            }
        }
        let (held, failed) = self.counts();
        let _ = writeln!(out, "\n{held} checks held, {failed} failed");
        out
    }
}

fn short(value: &Value) -> String {
    match value {
        Value::String(text) => text.trim_end().replace('\n', "\n      "),
        other => other.to_string(),
    }
}

/// Median, smallest and largest of some times.
#[derive(Debug, Clone, Copy)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
    /// The middle half: first and third quartile.
    pub quartiles: (f64, f64),
}

impl Spread {
    /// None of an empty list.
    pub fn of(times: &[f64]) -> Option<Self> {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (sorted.len() - 1) as f64;
            let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            ((low + (high - low) * place.fract()) * 100.0).round() / 100.0
        };
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        Some(Self {
            median: at(0.5),
            least,
            most,
            quartiles: (at(0.25), at(0.75)),
        })
    }

    pub fn text(&self) -> String {
        let (low, high) = self.quartiles;
        format!(
            "median {} ms, quartiles {low} to {high}, range {} to {}",
            self.median, self.least, self.most
        )
    }
}

/// A list of times as a TOML array.
pub fn times(values: &[f64]) -> Value {
    Value::Array(values.iter().map(|value| Value::Float(*value)).collect())
}

/// Date and time, UTC, as RFC 3339 writes them.
pub fn now() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    let clock = seconds % 86_400;
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        clock / 3600,
        clock / 60 % 60,
        clock % 60
    )
}

/// The civil date of a day counted from 1970-01-01 (the method of H. Hinnant's `civil_from_days`, for days after 1970).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_778), (2026, 11, 21));
    }

    #[test]
    fn the_median_lies_between_the_middle_two() {
        let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.least, spread.most), (2.5, 1.0, 4.0));
        assert_eq!(spread.quartiles, (1.75, 3.25));
        assert!(Spread::of(&[]).is_none());
    }

    #[test]
    fn a_failed_check_is_counted_and_told() {
        let mut section = Section::new("job");
        section.fact("sms", 32);
        section.equal("clients", &7, &8);
        section.check("nothing left", true, "nothing");
        let outcome = Outcome {
            sections: vec![section],
        };
        assert_eq!(outcome.counts(), (1, 1));
        assert!(outcome.text().contains("FAIL clients: 7, expected 8"));
        let read: Table = toml::from_str(&outcome.toml()).unwrap();
        assert_eq!(read["job"]["checks"][0]["ok"].as_bool(), Some(false));
    }
}
