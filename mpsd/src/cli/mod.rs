//! `mpsctl`, and what the programs share.

mod attach;
mod container_options;
mod doctor;
mod env;
pub mod examples;
mod exec;
pub mod explain;
mod idle;
pub mod job_arguments;
mod metrics;
pub mod mpsctl;
mod node_places;
mod plan;
pub mod programs;
pub mod reconcile;
pub mod report;
mod selftest;
mod selftest_job;
mod set;
mod site;
mod status;
mod support;
pub mod sweep;
mod terminal;
mod waiting;
pub mod words;

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
