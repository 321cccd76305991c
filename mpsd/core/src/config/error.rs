//! What is wrong with a configuration, in one line that names file, line and column.

use crate::failure::{Evidence, Fault};
use crate::text::one_line;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

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

impl ConfigError {
    /// The whole file is at fault.
    pub(super) fn whole(file: &Path, why: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            at: None,
            why: why.into(),
        }
    }

    /// The part `span` of `text` is at fault.
    pub(super) fn part(file: &Path, text: &str, span: &Range<usize>, why: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            at: Some(position(text, span.start)),
            why: why.into(),
        }
    }

    /// What serde and the TOML parser say.
    pub(super) fn toml(file: &Path, text: &str, error: &toml::de::Error) -> Self {
        let why = reworded(error.message());
        match error.span() {
            Some(span) => Self::part(file, text, &span, why),
            None => Self::whole(file, why),
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

/// Serde's words in ours, on one line.
fn reworded(message: &str) -> String {
    const LONGEST: usize = 600;
    let message = message.trim_end().replace('\n', "; ");
    let message = match message
        .strip_prefix("unknown field `")
        .and_then(|rest| rest.split_once('`'))
    {
        Some((key, rest)) => {
            let known = rest
                .trim_start_matches(", expected one of ")
                .trim_start_matches(", expected ");
            format!("unknown key '{key}'; known: {}", known.replace('`', ""))
        }
        None => message.replace('`', "'"),
    };
    one_line(&message, LONGEST)
}
