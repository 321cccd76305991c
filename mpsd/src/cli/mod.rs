//! `mpsctl`, and what the programs share.

pub mod asking;
pub mod attach;
pub mod doctor;
pub mod env;
pub mod exec;
pub mod explain;
pub mod mpsctl;
pub mod plan;
pub mod programs;
pub mod reconcile;
pub mod report;
pub mod site;
mod standing;
pub mod status;
pub mod support;
pub mod sweep;

use std::io::Write;

pub use crate::node::log::complain;

/// Name of `mpsctl` in messages.
pub const NAME: &str = "mpsctl";

/// Prints `text` on standard output; a closed one loses it.
pub fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
