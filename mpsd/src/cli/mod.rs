//! `mpsctl`, and what the programs share.

pub mod asking;
pub mod attach;
pub mod common;
pub mod daemon;
pub mod env;
pub mod exec;
pub mod mpsctl;
pub mod plan;
pub mod probe;
pub mod reconcile;
pub mod site;

use std::io::Write;

pub use crate::node::log::complain;

/// Prints `text` on standard output; a closed one loses it.
pub fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
