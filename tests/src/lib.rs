//! What the test programs share.

pub mod double;
pub mod slurm;
