//! What a user asks for: one grammar for every scheduler.
//!
//! [`Request::from_account`] reads the tokens of a PBS account string, [`Flags`] Slurm's flags,
//! [`Request::from_resource`] OpenPBS's `mps` resource; all three go by the table of `options` and end in the same
//! check of the whole. The text is hostile wherever it arrives: a Slurm user can put any bytes into the variable
//! that root's prolog reads (docs/facts/slurm.md#options).

mod flags;
mod options;
mod values;
mod words;

pub use flags::{Demand, Flags};
pub use options::{Key, Request, Row};
pub use values::{GpuSelector, MemoryLimit, Mode, Sms, Threads};
pub use words::Syntax;

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;
