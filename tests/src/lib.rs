//! What the test programs share.

pub mod double;
pub mod mom;
pub mod slurm;
pub mod stage;
