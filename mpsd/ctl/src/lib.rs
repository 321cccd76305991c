//! `mpsctl`: what users and administrators ask of a node and of its jobs.
#![allow(missing_docs)]

mod attach;
mod chart;
mod container_options;
mod doctor;
mod env;
mod exec;
pub mod explain;
mod foreign;
mod metrics;
pub mod mpsctl;
mod node_places;
mod plan;
pub mod report;
mod selftest;
mod site;
mod status;
mod terminal;
mod waiting;

pub use attach::{Caller, NO_JOB};
use mpsd::cli::this_node;
pub use mpsd::cli::{NAME, complain, examples};
pub use terminal::{say, say_json};
