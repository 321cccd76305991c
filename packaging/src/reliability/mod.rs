//! Runs that look for what is left behind: the matrices, the soak, the fuzzers.

pub mod fuzz;
pub mod matrices;
pub mod soak;
