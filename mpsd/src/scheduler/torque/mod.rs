//! Torque: `prologue` and `epilogue` of its mom, and its `$job_starter`.

pub(crate) mod starter;
pub mod submission;
