//! Slurm: what the plugin's job_prolog and job_epilog say of a job, and the verbs of `mpsctl slurm`.

mod check;
mod conf;
pub mod control;
pub mod gres;
mod lines;
mod refresh;
pub mod setup;
mod stamp;
pub mod submission;

pub use submission::commands;

#[cfg(test)]
mod tests;
