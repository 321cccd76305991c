//! `mpsctl`, and what the programs share.

pub mod asking;
pub mod attach;
pub mod doctor;
pub mod env;
pub mod examples;
pub mod exec;
pub mod explain;
mod idle;
pub mod metrics;
pub mod mpsctl;
pub mod plan;
pub mod programs;
pub mod reconcile;
pub mod report;
pub mod selftest;
mod set;
pub mod site;
mod standing;
pub mod status;
pub mod support;
pub mod sweep;
pub mod words;

use anstyle::AnsiColor;
use std::io::Write;

pub use crate::node::log::complain;

/// Name of `mpsctl` in messages.
pub const NAME: &str = "mpsctl";

/// What `--version` says: the release, and the commit where the build was told it (`MPSD_COMMIT`, as the packages' builds are).
pub fn version() -> String {
    let release = env!("CARGO_PKG_VERSION");
    match option_env!("MPSD_COMMIT") {
        Some(commit) => format!("{release} ({commit})"),
        None => release.to_owned(),
    }
}

/// The words that begin a finding, each in its colour.
const WORDS: [(&str, AnsiColor); 3] = [
    ("OK", AnsiColor::Green),
    ("WARN", AnsiColor::Yellow),
    ("FAIL", AnsiColor::Red),
];

/// Prints findings, or what stands between them; with colours on a terminal alone, and not where NO_COLOR is set.
pub(super) fn say_findings(text: &str) {
    let mut out = anstream::stdout();
    for line in text.lines() {
        let word = WORDS.iter().find_map(|(word, colour)| {
            let rest = line.strip_prefix(word).filter(|rest| rest.starts_with(' '))?;
            Some((word, colour.on_default(), rest))
        });
        let _ = match word {
            Some((word, style, rest)) => writeln!(out, "{style}{word}{style:#}{rest}"),
            None => writeln!(out, "{line}"),
        };
    }
}

/// Prints `text` on standard output; a closed one loses it.
pub fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
