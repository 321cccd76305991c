//! What the programs share: their command lines and what they tell.

pub mod examples;
pub mod job_arguments;
pub mod programs;
pub mod reconcile;
pub mod troubles;
pub mod words;

pub use crate::node::log::complain;
use crate::node::real::RealNode;
use mpsd_core::config::{Settings, directories_alone};
use serde::Serialize;
use std::fmt::Display;
use std::io::{Write as _, stdout};
use std::path::Path;

pub const NAME: &str = "mpsctl";

/// With the commit if the build knows it (`MPSD_COMMIT`, which the packages' builds set).
pub fn version() -> String {
    let release = env!("CARGO_PKG_VERSION");
    match option_env!("MPSD_COMMIT") {
        Some(commit) => format!("{release} ({commit})"),
        None => release.to_owned(),
    }
}

/// An unusable configuration must not keep what is left of a job: the directories that `file` still
/// names are enough, because the journals have the rest.
pub fn or_directories(
    program: &str,
    read: Result<Settings, impl Display>,
    file: &Path,
    node: &str,
) -> Settings {
    read.unwrap_or_else(|error| {
        let how = "going on with the directories that it names, else the usual directories";
        complain(program, &format!("{error}; {how}"));
        directories_alone(file, node)
    })
}

pub fn this_node(settings: &Settings) -> RealNode {
    RealNode::new(NAME, settings, settings.deadline, settings.deadline / 2)
}

/// A closed standard output loses it.
pub fn say(text: &str) {
    let _ = stdout().write_all(text.as_bytes());
}

/// In one line: scripts read an object a line.
pub fn say_json(value: &impl Serialize) {
    say(&(serde_json::to_string(value).unwrap_or_default() + "\n"));
}
