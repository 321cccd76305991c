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

/// Prints `program: text` on standard error, on one line; a closed standard error loses it.
pub fn complain(program: &str, text: &str) {
    let line = format!("{program}: {}\n", mpsd_core::text::one_line(text, 2000));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Prints `text` on standard output; a closed one loses it.
pub fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
