//! What a user asks for: one grammar for every scheduler.
//!
//! | file | holds |
//! |---|---|
//! | `options` | the table of options, and [`Request`], their values |
//! | `syntax` | the parser, the options that exclude each other, and [`Flags`], what a Slurm user typed |
//! | `values` | the values that are lists or words |

mod options;
mod syntax;
mod values;

pub use options::{Key, Request, Row};
pub use syntax::{Flags, Syntax};
pub use values::{GpuSelector, MemoryLimit, Mode, Sms, Threads};

#[cfg(test)]
mod tests;
