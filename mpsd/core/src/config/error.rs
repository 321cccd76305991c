//! What is wrong with a configuration, in one line that names file, line and column.

use crate::failure::{Evidence, Fault};
use crate::text::{nearest, one_line, or_meant};
use std::ops::Range;
use std::path::Path;

/// Longest reason that is told. Characters.
const LONGEST: usize = 600;

/// What is wrong with a part of the file.
#[derive(Debug)]
pub struct Wrong {
    /// The part.
    pub(super) span: Range<usize>,
    /// What is wrong, and what is allowed.
    why: String,
}

impl Wrong {
    pub(super) fn at(span: Range<usize>, why: impl AsRef<str>) -> Self {
        let why = one_line(why.as_ref(), LONGEST);
        Self { span, why }
    }

    /// What serde and the TOML parser say of the part, or of a part of it.
    pub(super) fn toml(error: &toml::de::Error, part: Range<usize>) -> Self {
        Self::at(error.span().unwrap_or(part), in_words(error.message()))
    }

    /// The same of `text`, which is the text of `file`.
    pub(super) fn of(self, file: &Path, text: &str) -> Fault {
        let (line, column) = position(text, self.span.start);
        let place = format!("{}:{line}:{column}", file.display());
        Fault::new(Evidence::Configuration, place, self.why)
    }
}

/// A message of serde's without the names that only a programmer knows, with the word that was meant.
fn in_words(message: &str) -> String {
    let mut why = message.trim_end().replace('\n', "; ").replace('`', "'");
    for (name, words) in NAMES {
        why = why.replace(name, words);
    }
    let Some((before, rest)) = why.split_once("unknown variant '") else {
        return why;
    };
    let Some((word, expected)) = rest.split_once('\'') else {
        return why;
    };
    let meant = nearest(word, expected.split('\'').skip(1).step_by(2)).map(|meant| format!("'{meant}'"));
    format!(
        "{before}{}{expected}",
        or_meant(&format!("unknown word '{word}'"), meant)
    )
}

/// Types as serde names them, and in words.
const NAMES: [(&str, &str); 3] = [
    ("expected i64", "expected a whole number"),
    ("expected a sequence", "expected a list in brackets"),
    ("expected a boolean", "expected true or false"),
];

/// The line and column, from 1, of the byte at `offset`.
pub(super) fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
}
