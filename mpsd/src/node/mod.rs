//! This node, as root changes it: [`real`] does here what [`crate::job::node::Node`] names.

pub mod clean;
mod daemons;
mod failed_starts;
pub mod log;
mod members;
pub mod nvml;
pub mod real;
pub mod recheck;
mod store;
pub mod sweep;
pub mod user;
pub mod verify;
pub mod worker;

pub use crate::job::node::{Held, Member, Members, Node, Role};
