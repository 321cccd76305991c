//! What Torque and OpenPBS share: where a PBS lives, pbsnodes, and the verbs of `mpsctl pbs`.

mod check;
pub mod control;
pub(crate) mod files;
pub mod installation;
pub mod pbsnodes;
mod request;
pub mod setup;

pub(crate) use installation::MOST_CONF;
pub use installation::{Installation, Site, same_node};

#[cfg(test)]
mod tests;
