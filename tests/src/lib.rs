//! What the test programs share.

pub mod beside;
pub mod child;
pub mod double;
pub mod figures;
pub mod fuse;
pub mod fuzzing;
pub mod mom;
pub mod node_bed;
pub mod orders;
pub mod run;
pub mod samples;
pub mod scarcity;
pub mod scripts;
pub mod sim;
pub mod slurm;
pub mod syslog;
