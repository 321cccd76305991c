//! What a user asks for: one grammar for every scheduler. Each option is a row of `options`,
//! `syntax` parses.

mod options;
mod syntax;
mod values;

pub use options::{Key, Request, Row};
pub use syntax::{Flags, Syntax};
pub use values::{MemoryLimit, Mode, Threads};

#[cfg(test)]
mod tests;
