//! The dated result: sections of facts and checks, as TOML.

use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use ::tests::child::{self, Ran};
use ::tests::samples::quantile;
use anyhow::Result;
use serde::Serialize;
use toml::{Table, Value};

use crate::site;

#[derive(Debug, Clone, Serialize)]
pub struct Check {
    pub name: String,
    pub ok: bool,
    pub seen: String,
}

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

    pub fn fact(&mut self, key: &str, value: impl Into<Value>) {
        self.facts.insert(key.to_owned(), value.into());
    }

    pub fn times(&mut self, key: &str, values: &[f64]) {
        self.fact(key, values.to_vec());
        self.fact(&format!("{key}_spread"), spread(values));
    }

    pub fn check(&mut self, name: impl Into<String>, ok: bool, seen: impl Into<String>) -> bool {
        self.checks.push(Check {
            name: name.into(),
            ok,
            seen: seen.into(),
        });
        ok
    }

    /// Records that a program exited with 0, or else its story. Returns whether it did.
    pub fn good(&mut self, name: impl Into<String>, ran: &Ran) -> bool {
        self.check(name, ran.code == Some(0), ran.story())
    }

    pub fn at_most(&mut self, name: impl Into<String>, seen: f64, most: f64) -> bool {
        self.check(name, seen <= most, seen.to_string())
    }

    pub fn none(&mut self, name: impl Into<String>, found: &[String]) -> bool {
        self.check(name, found.is_empty(), found.join("\n"))
    }

    pub fn equal<T: PartialEq + std::fmt::Debug>(
        &mut self,
        name: impl Into<String>,
        seen: &T,
        expected: &T,
    ) -> bool {
        self.check(
            name,
            seen == expected,
            format!("{seen:?}, expected {expected:?}"),
        )
    }

    fn table(&self) -> Table {
        let mut table = self.facts.clone();
        let checks = self.checks.iter();
        let checks: Vec<Value> = checks
            .filter_map(|check| Value::try_from(check).ok())
            .collect();
        if !checks.is_empty() {
            table.insert("checks".into(), Value::Array(checks));
        }
        table
    }
}

#[derive(Debug, Clone, Default)]
pub struct Outcome {
    pub sections: Vec<Section>,
}

impl Outcome {
    pub fn counts(&self) -> (usize, usize) {
        let all = self.sections.iter().flat_map(|section| &section.checks);
        let (held, failed): (Vec<&Check>, Vec<&Check>) = all.partition(|check| check.ok);
        (held.len(), failed.len())
    }

    pub fn toml(&self) -> Result<String> {
        let (held, failed) = self.counts();
        let mut table = Table::new();
        table.insert("date".into(), Value::String(now()?));
        table.insert("checks_held".into(), Value::Integer(held as i64));
        table.insert("checks_failed".into(), Value::Integer(failed as i64));
        for section in &self.sections {
            table.insert(section.name.into(), Value::Table(section.table()));
        }
        Ok(toml::to_string(&table)?)
    }

    pub fn failures(&self) -> String {
        let mut out = String::new();
        for section in &self.sections {
            for check in section.checks.iter().filter(|check| !check.ok) {
                let _ = writeln!(out, "FAIL {}: {}: {}", section.name, check.name, check.seen);
            }
        }
        let (held, failed) = self.counts();
        let _ = writeln!(out, "{held} checks held, {failed} failed");
        out
    }
}

pub fn spread(times: &[f64]) -> String {
    let at = |part| hundredths(quantile(times, part));
    format!(
        "median {} ms, quartiles {} to {}, range {} to {}",
        at(0.5),
        at(0.25),
        at(0.75),
        at(0.0),
        at(1.0)
    )
}

pub fn median(values: &[f64]) -> f64 {
    hundredths(quantile(values, 0.5))
}

pub fn hundredths(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

fn now() -> Result<String> {
    let mut date = Command::new(site::program("date")?);
    let ran = child::run(date.args(["-u", "+%FT%TZ"]), "", Duration::from_secs(5))?;
    Ok(ran.success()?.stdout.trim().to_owned())
}
