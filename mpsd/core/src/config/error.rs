//! What is wrong with a configuration, in one line that names file, line and column.

use crate::failure::{Evidence, Fault};
use crate::text::one_line;
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
        let message = error.message().trim_end();
        let why = message.replace('\n', "; ").replace('`', "'");
        Self::at(error.span().unwrap_or(part), why)
    }

    /// The same of `text`, which is the text of `file`.
    pub(super) fn of(self, file: &Path, text: &str) -> Fault {
        let (line, column) = position(text, self.span.start);
        let place = format!("{}:{line}:{column}", file.display());
        Fault::new(Evidence::Configuration, place, self.why)
    }
}

/// The line and column, from 1, of the byte at `offset`.
pub(super) fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
}
