//! The file as it is written: the keys outside of sections, and each `[[node]]` section.

use super::hosts::HostList;
use super::settings::{Row, SECTIONS, Section, Settings};
use super::values::{ConfigError, Entry, position};
use crate::text::{nearest, or_meant};
use serde::de::DeserializeOwned;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

const ANY_NODE: &str = "node";
/// Lines with errors of syntax, in a file that still tells something.
const MOST_BLANKED: usize = 64;

type Value<'a> = Spanned<DeValue<'a>>;

#[derive(Debug, Default)]
pub(super) struct Layer<'a> {
    hosts: Option<HostList>,
    pub(super) values: Vec<(&'static Row, Value<'a>)>,
}

impl Layer<'_> {
    pub(super) fn fits(&self, node: &str) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.contains(node))
    }
}

/// The parts of the file, in order, each key read once with all its checks; or the file's first
/// error.
pub(super) fn layers(text: &str) -> Result<Vec<Layer<'_>>, ConfigError> {
    let file = DeTable::parse(text).map_err(|error| of_value(&error, text))?;
    let (layers, errors) = read(file.into_inner());
    match errors.into_iter().min_by_key(|error| error.span.start) {
        None => Ok(layers),
        Some(error) => Err(error),
    }
}

/// An error of the TOML parser. If it is in a value, with the value's key, and how that is written:
/// the parser guesses at a type, and knows none.
fn of_value(error: &toml::de::Error, text: &str) -> ConfigError {
    let error = ConfigError::toml(error, 0..0);
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

/// What can be read of a file with errors, once they are [`blanked`].
pub(super) fn layers_despite_errors(text: &str) -> Vec<Layer<'_>> {
    let file = DeTable::parse(text).map(Spanned::into_inner);
    read(file.unwrap_or_default()).0
}

/// `text` with a blank in place of each line that is no TOML.
pub(super) fn blanked(text: &str) -> String {
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

fn read(file: DeTable<'_>) -> (Vec<Layer<'_>>, Vec<ConfigError>) {
    let mut reader = Reader::default();
    let (top, nodes) = reader.layer(file, None);
    let mut layers = vec![top];
    for node in nodes {
        let span = node.span();
        let Some(table) = reader.table("[[node]]", node) else {
            continue;
        };
        let (layer, nested) = reader.layer(table, Some(span));
        for nested in nested {
            reader.say(nested.span(), "a [[node]] section within another");
        }
        layers.push(layer);
    }
    (layers, reader.errors)
}

#[derive(Default)]
struct Reader {
    scratch: Settings,
    errors: Vec<ConfigError>,
}

impl Reader {
    fn say(&mut self, span: Range<usize>, why: impl AsRef<str>) {
        self.errors.push(ConfigError::at(span, why));
    }

    fn layer<'a>(
        &mut self,
        table: DeTable<'a>,
        section: Option<Range<usize>>,
    ) -> (Layer<'a>, Vec<Value<'a>>) {
        let mut layer = Layer::default();
        let mut nodes = Vec::new();
        let mut has_hosts = false;
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "hosts" if section.is_none() => {
                    self.say(value.span(), "belongs into a [[node]] section");
                }
                "hosts" => {
                    has_hosts = true;
                    layer.hosts = self.get(value);
                }
                "node" => match value.into_inner() {
                    DeValue::Array(sections) => nodes.extend(sections),
                    _ => {
                        let why = "node is written as [[node]], once for each section";
                        self.say(key.span(), why);
                    }
                },
                name => match SECTIONS[1..].iter().find(|section| section.name == name) {
                    Some(section) => {
                        for (key, value) in self.table(name, value).unwrap_or_default() {
                            self.key(section, &key, value, &mut layer);
                        }
                    }
                    None => self.key(&SECTIONS[0], &key, value, &mut layer),
                },
            }
        }
        if let (Some(span), false) = (section, has_hosts) {
            self.say(span, "a [[node]] section needs hosts");
        }
        (layer, nodes)
    }

    fn key<'a>(
        &mut self,
        section: &'static Section,
        key: &Spanned<impl AsRef<str>>,
        value: Value<'a>,
        layer: &mut Layer<'a>,
    ) {
        let name = key.get_ref().as_ref();
        let Some(row) = section.rows.iter().find(|row| row.key == name) else {
            let why = or_meant(&format!("unknown key '{name}'"), meant(section, name));
            let known = known(section).join(", ");
            return self.say(key.span(), format!("{why}; known: {known}"));
        };
        let entry = Entry::new(&value, ANY_NODE);
        let read = (row.read)(&mut self.scratch, &entry);
        self.errors
            .extend(read.err().map(|error| error.of_key(row.name)));
        layer.values.push((row, value));
    }

    fn get<T: DeserializeOwned>(&mut self, value: Value<'_>) -> Option<T> {
        let read = Entry::new(&value, ANY_NODE).get();
        read.map_err(|error| self.errors.push(error)).ok()
    }

    fn table<'a>(&mut self, name: &str, value: Value<'a>) -> Option<DeTable<'a>> {
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
    let here = nearest(name, known(section));
    let elsewhere = || {
        let rows = || SECTIONS.iter().flat_map(|section| section.rows);
        let key = nearest(name, rows().map(|row| row.key))?;
        Some(rows().find(|row| row.key == key)?.name)
    };
    here.or_else(elsewhere).map(|key| format!("'{key}'"))
}

fn known(section: &Section) -> Vec<&'static str> {
    let mut names: Vec<&str> = section.rows.iter().map(|row| row.key).collect();
    if section.name.is_empty() {
        names.extend(SECTIONS[1..].iter().map(|section| section.name));
        names.extend(["hosts", "node"]);
    }
    names
}
