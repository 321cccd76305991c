//! Doubles of NVIDIA's parts. One directory is one node: `node` describes it, `visible` is CUDA's
//! view of it, `wire` is how the doubles talk, `build` makes it. `look` looks at it and at /proc
//! independently of the tested programs.

pub mod build;
pub mod frozen;
pub mod look;
pub mod node;
pub mod visible;
pub mod wire;

pub use build::{Builder, NodeDouble, copy_program, mig};
pub use frozen::{Frozen, remove_cgroup};
