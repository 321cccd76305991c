//! The callbacks against a Slurm and a node of our own: no symbol of Slurm is reached.

mod container;
mod ending;
mod fake;
mod jobs;
mod steps;
mod submission;
mod tasks;
mod unplugged;
