//! What the programs share: their command lines and what they tell.

pub mod examples;
pub mod job_arguments;
pub mod programs;
pub mod reconcile;
pub mod troubles;
pub mod words;

pub use crate::node::log::complain;
use crate::node::real::RealNode;
use mpsd_core::config::Settings;
use serde::Serialize;
use std::io::{Write as _, stdout};

/// Name of `mpsctl` in messages.
pub const NAME: &str = "mpsctl";

/// The release, and the commit if the build knows it (`MPSD_COMMIT`, which the packages' builds
/// set).
pub fn version() -> String {
    let release = env!("CARGO_PKG_VERSION");
    match option_env!("MPSD_COMMIT") {
        Some(commit) => format!("{release} ({commit})"),
        None => release.to_owned(),
    }
}

fn this_node(settings: &Settings) -> RealNode {
    RealNode::new(NAME, settings, settings.deadline, settings.deadline / 2)
}

/// Prints `text` on standard output; a closed one loses it.
pub fn say(text: &str) {
    let _ = stdout().write_all(text.as_bytes());
}

/// Prints `value` as JSON in one line: scripts read an object a line.
pub fn say_json(value: &impl Serialize) {
    say(&(serde_json::to_string(value).unwrap_or_default() + "\n"));
}
