//! What the test programs share.

pub mod double;
pub mod mom;
pub mod sim;
pub mod slurm;
pub mod stage;
