//! `mpsctl`, and what the programs share.

mod attach;
mod chart;
mod container_options;
mod doctor;
mod env;
pub mod examples;
mod exec;
pub mod explain;
pub mod job_arguments;
mod metrics;
pub mod mpsctl;
mod node_places;
mod plan;
pub mod programs;
pub mod reconcile;
pub mod report;
mod selftest;
mod set;
mod site;
mod status;
mod support;
mod terminal;
mod waiting;
pub mod words;

pub use crate::node::log::complain;
use crate::node::real::RealNode;
pub use attach::{Caller, NO_JOB};
use mpsd_core::config::Settings;
pub use terminal::{say, say_json};

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
