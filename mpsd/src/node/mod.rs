//! This node, as root changes it: [`real`] does here what [`crate::job::node::Node`] names.

mod as_user;
pub mod controls;
mod devices;
pub mod directories;
mod files;
mod launch;
pub mod log;
pub mod members;
pub mod nvml;
pub mod real;
pub mod reports;
pub mod site_directory;
pub mod tasks;
#[cfg(test)]
pub mod testing;
pub mod unbegun;
pub mod worker;

use crate::job::{failure, unless_scarce};
use mpsd_sys::Exit;
use mpsd_sys::deadline::Deadline;
use mpsd_sys::guard::{AskError, ask};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Asks in a child: the question may hang.
pub fn by_child<T: Serialize + DeserializeOwned>(
    deadline: Deadline,
    question: impl FnOnce() -> T,
) -> Result<T, AskError> {
    let answer = ask(deadline, || {
        serde_json::to_vec(&question()).unwrap_or_default()
    })?;
    // The child wrote the whole answer, or it failed.
    serde_json::from_slice(&answer).map_err(|_| AskError::Ended(Exit::Code(0)))
}
