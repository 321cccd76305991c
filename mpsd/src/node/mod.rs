//! This node, as root changes it: [`real`] does here what [`crate::job::node::Node`] names.

mod daemons;
mod failed_starts;
mod gpus;
pub mod log;
mod members;
pub mod nvml;
mod probe;
pub mod real;
pub mod recheck;
mod store;
pub mod user;
pub mod worker;
