//! What is wrong with a configuration, in one line that names file, line and column.

use crate::failure::{Evidence, Fault};
use crate::text::one_line;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Longest reason that is told. Characters.
const LONGEST: usize = 600;

/// A configuration that cannot be used: the node's fault, told to the administrator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// Line and column of the culprit, from 1, where there is one.
    pub at: Option<(usize, usize)>,
    /// What is wrong, and what is allowed.
    pub why: String,
}

/// What is wrong with a part of the file.
#[derive(Debug)]
pub struct Wrong {
    /// The part.
    pub(super) span: Range<usize>,
    /// What is wrong, and what is allowed.
    pub(super) why: String,
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
}

impl ConfigError {
    /// The whole file is at fault.
    pub(super) fn whole(file: &Path, why: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            at: None,
            why: why.into(),
        }
    }

    /// A part of `text` is at fault.
    pub(super) fn part(file: &Path, text: &str, wrong: Wrong) -> Self {
        Self {
            file: file.to_owned(),
            at: Some(position(text, wrong.span.start)),
            why: wrong.why,
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.file.display())?;
        if let Some((line, column)) = self.at {
            write!(out, ":{line}:{column}")?;
        }
        write!(out, ": {}", self.why)
    }
}

impl From<ConfigError> for Fault {
    fn from(error: ConfigError) -> Self {
        let what = match error.at {
            Some((line, column)) => format!("{}:{line}:{column}", error.file.display()),
            None => error.file.display().to_string(),
        };
        Fault::new(Evidence::Configuration, what, error.why)
    }
}

/// The line and column, from 1, of the byte at `offset`.
pub(super) fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
}
