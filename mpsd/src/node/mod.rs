//! This node, as root changes it: [`real`] does here what [`crate::job::node::Node`] names.

mod as_user;
pub mod clients;
mod files;
mod launch;
pub(crate) mod lift_check;
pub mod log;
mod members;
pub(crate) mod nvml;
pub mod real;
pub(crate) mod reports;
pub mod site_directory;
pub mod worker;

use crate::job::{failure, unless_scarce};
