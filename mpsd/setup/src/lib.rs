//! What `mpsctl` does for an administrator in a scheduler's configuration.
#![allow(missing_docs, missing_debug_implementations)]

pub mod node_check;
mod openpbs;
mod pbs;
pub mod room;
mod slurm;
#[cfg(test)]
mod testing;
mod torque;
mod verbs;

pub use verbs::*;

/// The verbs of `mpsctl` that set up a scheduler. Both PBS share theirs.
pub static ADMIN_VERBS: [AdminVerbs; 2] = [slurm::VERBS, pbs::VERBS];
