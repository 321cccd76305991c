//! What the test programs share.

pub mod double;
pub mod fuzzing;
pub mod mom;
pub mod place;
pub mod sim;
pub mod slurm;
pub mod soak;
pub mod stage;
