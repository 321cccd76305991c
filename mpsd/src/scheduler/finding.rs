//! One line of a check.

use std::fmt;

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// As it should be.
    Good(String),
    /// It works, and could be better.
    Better(String),
    /// It does not work, and what to do.
    Wrong(String),
}

impl Finding {
    /// Whether something is wrong.
    pub fn is_wrong(&self) -> bool {
        matches!(self, Self::Wrong(_))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Good(text) => write!(f, "OK    {text}"),
            Self::Better(text) => write!(f, "WARN  {text}"),
            Self::Wrong(text) => write!(f, "FAIL  {text}"),
        }
    }
}
