//! What is wrong with the file, in one line that names file, line and column.

use crate::failure::{Evidence, Fault};
use crate::text::{nearest, one_line, or_meant};
use std::ops::Range;
use std::path::Path;

const LONGEST: usize = 600;
const TYPE_NAMES: [(&str, &str); 3] = [
    ("expected i64", "expected a whole number"),
    ("expected a sequence", "expected a list in brackets"),
    ("expected a boolean", "expected true or false"),
];

#[derive(Debug)]
pub struct ConfigError {
    pub(super) span: Range<usize>,
    why: String,
}

impl ConfigError {
    pub(super) fn at(span: Range<usize>, why: impl AsRef<str>) -> Self {
        let why = one_line(why.as_ref(), LONGEST);
        Self { span, why }
    }

    /// An error of serde or the TOML parser in `part` of the file.
    pub(super) fn toml(error: &toml::de::Error, part: Range<usize>) -> Self {
        Self::at(error.span().unwrap_or(part), in_words(error.message()))
    }

    /// The fault in one line, with line and column in `file`, which holds `text`.
    pub(super) fn in_file(self, file: &Path, text: &str) -> Fault {
        let (line, column) = position(text, self.span.start);
        let place = format!("{}:{line}:{column}", file.display());
        Fault::new(Evidence::Configuration, place, self.why)
    }
}

/// A message of serde without the names that only a programmer knows, and with the word that was meant.
fn in_words(message: &str) -> String {
    let mut why = message.trim_end().replace('\n', "; ").replace('`', "'");
    for (name, words) in TYPE_NAMES {
        why = why.replace(name, words);
    }
    let unknown = why.split_once("unknown variant '");
    let unknown = unknown.and_then(|(before, rest)| Some((before, rest.split_once('\'')?)));
    let Some((before, (word, expected))) = unknown else {
        return why;
    };
    let meant = nearest(word, expected.split('\'').skip(1).step_by(2)).map(|meant| format!("'{meant}'"));
    let unknown = or_meant(&format!("unknown word '{word}'"), meant);
    format!("{before}{unknown}{expected}")
}

/// The line and column, from 1, of the byte at `offset`.
pub(super) fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}
