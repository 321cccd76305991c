//! What the reliability runs say of themselves, `figure: NAME = COUNT`, and the file that README's table is made from.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use toml::{Table, Value};

/// Where `--record` writes, from the workspace's root.
pub const FILE: &str = "tests/reliability/figures.toml";

const HEAD: &str = "# Written by 'cargo xtask matrices', 'soak' and 'fuzz' with --record. A run that loses anything writes nothing.\n\n";

/// Counts by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Figures(BTreeMap<String, u64>);

impl Figures {
    /// Takes one line of output. Libtest puts a test's name before the first line that it prints.
    pub fn line(&mut self, line: &str) {
        let Some((_, rest)) = line.split_once("figure: ") else {
            return;
        };
        if let Some((name, count)) = rest.split_once(" = ")
            && let Ok(count) = count.trim().parse::<u64>()
        {
            self.add(name, count);
        }
    }

    /// Counts `count` more of `name`.
    pub fn add(&mut self, name: &str, count: u64) {
        *self.0.entry(name.to_owned()).or_default() += count;
    }

    /// The count of `name`; 0 if nothing said it.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// One line each.
    pub fn text(&self) -> String {
        self.0
            .iter()
            .map(|(name, count)| format!("{name:<24} {count}\n"))
            .collect()
    }

    /// Replaces section `name` of the file; the others stay.
    pub fn record(&self, root: &Path, name: &str) -> Result<()> {
        let file = root.join(FILE);
        let text = fs::read_to_string(&file).unwrap_or_default();
        let mut all: Table = toml::from_str(&text).with_context(|| format!("'{}'", file.display()))?;
        let mut section = Table::new();
        section.insert("date".to_owned(), Value::String(today()));
        for (key, count) in &self.0 {
            section.insert(key.clone(), Value::Integer(i64::try_from(*count)?));
        }
        all.insert(name.to_owned(), Value::Table(section));
        if let Some(directory) = file.parent() {
            fs::create_dir_all(directory)?;
        }
        fs::write(&file, format!("{HEAD}{}", toml::to_string(&all)?))
            .with_context(|| format!("cannot write '{}'", file.display()))
    }
}

/// `2026-11-21`, UTC.
fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    date(since.as_secs() / 86_400)
}

/// The date so many days after 1970-01-01.
fn date(days: u64) -> String {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_up_what_is_said_and_nothing_else() {
        let mut figures = Figures::default();
        for line in [
            "figure: faults = 3",
            "test faults::x ... figure: faults = 2",
            "figure: faults",
            "figure: faults = many",
            "faults = 7",
        ] {
            figures.line(line);
        }
        assert_eq!((figures.get("faults"), figures.get("other")), (5, 0));
    }

    #[test]
    fn a_section_is_replaced_and_the_others_stay() {
        let root = std::env::temp_dir().join(format!("figures-{}", std::process::id()));
        let write = |section: &str, count| {
            let mut figures = Figures::default();
            figures.add("tried", count);
            figures.record(&root, section).unwrap();
        };
        write("soak", 1);
        write("fuzz", 2);
        write("soak", 3);
        let all: Table = toml::from_str(&fs::read_to_string(root.join(FILE)).unwrap()).unwrap();
        fs::remove_dir_all(&root).unwrap();
        let tried = |section: &str| all[section]["tried"].as_integer();
        assert_eq!((tried("soak"), tried("fuzz")), (Some(3), Some(2)));
    }

    #[test]
    fn dates_are_right_around_leap_days() {
        for (days, text) in [
            (0, "1970-01-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_778, "2026-11-21"),
            (20_818, "2026-12-31"),
        ] {
            assert_eq!(date(days), text);
        }
    }
}
