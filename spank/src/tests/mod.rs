//! The callbacks, called as Slurm does, on a Slurm and a node that are doubles.

mod by_site;
mod double;
mod ending;
mod jobs;
mod steps;
mod submission;
mod tasks;
