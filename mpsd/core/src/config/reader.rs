//! Reads the file: the keys outside of sections, then each `[[node]]` section.

use super::hosts::HostList;
use super::settings::{Row, SECTIONS, Section, Settings};
use super::values::{ConfigError, Entry, position};
use crate::text::{nearest, or_meant};
use std::collections::BTreeMap;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// Lines with errors of syntax, in a file that still tells something.
const MOST_BLANKED: usize = 64;

type Key<'a> = Spanned<DeString<'a>>;
type Value<'a> = Spanned<DeValue<'a>>;

/// The settings of `node`, or the first error, even if it is in a section for other nodes.
pub(super) fn read(text: &str, node: &str) -> Result<Settings, ConfigError> {
    let file = DeTable::parse(text).map_err(|error| of_value(&error, text))?;
    let mut reader = Reader::new(text, node);
    reader.file(file.into_inner());
    let errors = reader.errors.into_iter();
    match errors.min_by_key(|error| error.span.start) {
        None => Ok(reader.settings.with_origins(&reader.lines)),
        Some(error) => Err(error),
    }
}

pub(super) fn read_despite_errors(text: &str, node: &str) -> Settings {
    let text = blanked(text);
    let mut reader = Reader::new(&text, node);
    let file = DeTable::parse(&text).map(Spanned::into_inner);
    reader.file(file.unwrap_or_default());
    reader.settings
}

/// The parser guesses at a value's type, so the value's key says how it is written.
fn of_value(error: &toml::de::Error, text: &str) -> ConfigError {
    let is_double = error.message() == "duplicate key";
    let error = ConfigError::toml(error, 0..0);
    if is_double {
        let name = text.get(error.span.clone()).unwrap_or_default();
        let why = format!("duplicate key '{name}': each key and each [table] stands once");
        return ConfigError::at(error.span, why);
    }
    let before = text.get(..error.span.start).unwrap_or_default();
    let (above, line) = before.rsplit_once('\n').unwrap_or(("", before));
    let table = |line: &'_ str| Some(line.trim().strip_prefix('[')?.split(']').next()?.to_owned());
    let table = above.lines().rev().find_map(table).unwrap_or_default();
    let section = SECTIONS.iter().find(|section| section.name == table);
    let section = section.unwrap_or(&SECTIONS[0]);
    let rows = || SECTIONS.iter().flat_map(|section| section.rows);
    let row = line.split_once('=').and_then(|(key, _)| {
        let is_here = |row: &&Row| row.key == key.trim();
        let of_section = section.rows.iter().find(is_here);
        of_section.or_else(|| rows().find(|row| row.name == key.trim()))
    });
    match row {
        Some(row) => error.of_key(row.name).allowed(&row.usual()),
        None => error,
    }
}

/// `text` with a blank in place of each line that is no TOML.
fn blanked(text: &str) -> String {
    let mut lines: Vec<&str> = text.split('\n').collect();
    for _ in 0..MOST_BLANKED {
        let now = lines.join("\n");
        let Err(error) = DeTable::parse(&now) else {
            return now;
        };
        let at = error.span().map_or(0, |span| span.start);
        lines[position(&now, at).0 - 1] = "";
    }
    String::new()
}

#[derive(Default)]
struct Reader<'a> {
    text: &'a str,
    node: &'a str,
    settings: Settings,
    /// Sections for other nodes are read into these, for their errors.
    others: Settings,
    /// The lines of the keys in force, by name.
    lines: BTreeMap<&'static str, usize>,
    errors: Vec<ConfigError>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str, node: &'a str) -> Self {
        let none = Self::default();
        Self { text, node, ..none }
    }

    fn say(&mut self, span: Range<usize>, why: impl AsRef<str>) {
        self.errors.push(ConfigError::at(span, why));
    }

    fn file(&mut self, mut file: DeTable<'_>) {
        let sections = self.sections(&mut file);
        if let Some(hosts) = file.remove("hosts") {
            self.say(hosts.span(), "belongs into a [[node]] section");
        }
        self.keys(file, true);
        for section in sections {
            self.section(section);
        }
    }

    fn section(&mut self, section: Value<'_>) {
        let span = section.span();
        let Some(mut table) = self.table("[[node]]", section) else {
            return;
        };
        for nested in self.sections(&mut table) {
            self.say(nested.span(), "a [[node]] section within another");
        }
        let hosts = match table.remove("hosts") {
            Some(hosts) => Entry::new(&hosts, self.node).get::<HostList>(),
            None => Err(ConfigError::at(span, "a [[node]] section needs hosts")),
        };
        let fits = hosts.as_ref().is_ok_and(|hosts| hosts.contains(self.node));
        self.errors.extend(hosts.err());
        self.keys(table, fits);
    }

    /// Takes the `[[node]]` sections out of `table`.
    fn sections<'t>(&mut self, table: &mut DeTable<'t>) -> Vec<Value<'t>> {
        let Some((key, value)) = table.remove_entry("node") else {
            return Vec::new();
        };
        if let DeValue::Array(sections) = value.into_inner() {
            return sections.into_iter().collect();
        }
        let why = "node is written as [[node]], once for each section";
        self.say(key.span(), why);
        Vec::new()
    }

    fn keys(&mut self, table: DeTable<'_>, fits: bool) {
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            match SECTIONS[1..].iter().find(|section| section.name == name) {
                Some(section) => {
                    for (key, value) in self.table(name, value).unwrap_or_default() {
                        self.key(section, &key, &value, fits);
                    }
                }
                None => self.key(&SECTIONS[0], &key, &value, fits),
            }
        }
    }

    fn key(&mut self, section: &Section, key: &Key<'_>, value: &Value<'_>, fits: bool) {
        let name = key.get_ref().as_ref();
        let Some(row) = section.rows.iter().find(|row| row.key == name) else {
            let why = or_meant(&format!("unknown key '{name}'"), meant(section, name));
            let known = known(section).join(", ");
            return self.say(key.span(), format!("{why}; known: {known}"));
        };
        let settings = match fits {
            true => &mut self.settings,
            false => &mut self.others,
        };
        match (row.read)(settings, &Entry::new(value, self.node)) {
            Err(error) => self.errors.push(error.of_key(row.name)),
            Ok(()) if fits => {
                let (line, _) = position(self.text, value.span().start);
                self.lines.insert(row.name, line);
            }
            Ok(()) => {}
        }
    }

    fn table<'t>(&mut self, name: &str, value: Value<'t>) -> Option<DeTable<'t>> {
        let span = value.span();
        match value.into_inner() {
            DeValue::Table(table) => Some(table),
            _ => {
                self.say(span, format!("{name} is a table"));
                None
            }
        }
    }
}

fn meant(section: &Section, name: &str) -> Option<String> {
    let here = nearest(name, known(section)).map(|key| format!("'{key}'"));
    let elsewhere = || {
        let rows = || SECTIONS.iter().flat_map(|section| section.rows);
        let key = nearest(name, rows().map(|row| row.key))?;
        let name = rows().find(|row| row.key == key)?.name;
        // Such a key has no section: it looks as it was written.
        let place = if name == key {
            " above the first [table]"
        } else {
            ""
        };
        Some(format!("'{name}'{place}"))
    };
    here.or_else(elsewhere)
}

fn known(section: &Section) -> Vec<&'static str> {
    let mut names: Vec<&str> = section.rows.iter().map(|row| row.key).collect();
    if section.name.is_empty() {
        names.extend(SECTIONS[1..].iter().map(|section| section.name));
        names.extend(["hosts", "node"]);
    }
    names
}
