//! Doubles of NVIDIA's parts: one directory stands for one node.
//!
//! `node` describes it and holds what runs on it now, `visible` is CUDA's view of it (which GPUs a program sees and
//! what its limits leave), `wire` is how the doubles talk among themselves, `build` makes such a directory for a test,
//! and `look` looks at it (and at /proc) independently of the programs under test.

pub mod build;
pub mod frozen;
pub mod look;
pub mod node;
pub mod visible;
pub mod wire;

pub use build::{Builder, NodeDouble, Programs, copy_program, mig};
pub use frozen::{Frozen, remove_cgroup};
