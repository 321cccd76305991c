//! Prometheus' text form (prometheus.io/docs/instrumenting/exposition_formats).

use std::fmt::{Display, Write as _};

/// A page of it.
#[derive(Debug, Default)]
pub struct Page(String);

/// What kind of number a family has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
#[display(rename_all = "lowercase")]
pub enum Kind {
    /// It grows, and begins at 0 again.
    Counter,
    /// It is as it is now.
    Gauge,
    /// Counts by class, their sum and their number.
    Histogram,
}

/// Names and values.
pub type Labels<'a> = [(&'a str, &'a str)];

impl Page {
    /// A family of numbers begins; `help` has neither line's end nor backslash.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// One of them.
    pub fn sample(&mut self, name: &str, labels: &Labels<'_>, value: impl Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
            .collect();
        let labels = match labels.is_empty() {
            true => String::new(),
            false => format!("{{{}}}", labels.join(",")),
        };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    /// A family of one.
    pub fn single(&mut self, name: &str, kind: Kind, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    /// The page's text.
    pub fn text(self) -> String {
        self.0
    }
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
