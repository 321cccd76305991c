//! This node, as root changes it: [`real`] does here what [`crate::job::node::Node`] names.

mod daemons;
mod device_files;
pub(crate) mod failed_starts;
mod gpus;
mod launch;
pub mod log;
mod looks;
mod members;
pub(crate) mod nvml;
mod probe;
pub mod real;
pub(crate) mod recheck;
mod store;
mod suspicions;
pub mod user;
pub mod worker;
