//! This node, as root changes it: [`real`] does here what [`crate::job::node::Node`] names.

pub mod clients;
mod daemons;
mod device_files;
mod exporters;
pub(crate) mod failed_starts;
mod gpus;
pub mod hung_worker;
mod kept;
mod launch;
pub mod listed;
pub mod log;
mod looks;
mod members;
pub(crate) mod nvml;
pub(crate) mod own_reports;
mod probe;
pub mod real;
pub(crate) mod recheck;
pub(crate) mod reports;
mod room;
mod store;
mod suspicions;
pub mod user;
pub mod worker;

use crate::sys::is_scarcity;
use mpsd_core::Failure;
use mpsd_core::failure::{Evidence, Fault, Undetermined};
use nix::errno::Errno;

/// `evidence` against the node; undetermined where there is none.
fn failure(evidence: Option<Evidence>, what: impl Into<String>, why: impl Into<String>) -> Failure {
    match evidence {
        Some(evidence) => Fault::new(evidence, what, why).into(),
        None => Undetermined::new(what, why).into(),
    }
}

/// The same for what the kernel refused: that something ran out is no evidence.
fn unless_scarce(evidence: Evidence, errno: Option<Errno>) -> Option<Evidence> {
    (!errno.is_some_and(is_scarcity)).then_some(evidence)
}
