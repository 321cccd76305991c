//! What every program of the suite knows of a job. Slurm's plugin runs inside `slurmd` and links
//! this crate alone.
//!
//! So nothing in here starts a process or talks to a GPU, and every wait has a [`deadline`]. It
//! opens only the configuration, the record, this process's status and `/dev/null`.
#![forbid(unsafe_code)]
// A name that says all needs no sentence.
#![allow(missing_docs)]

pub mod advice;
pub mod bind;
pub mod by_site;
pub mod config;
pub mod deadline;
pub mod environment;
pub mod failure;
pub mod file;
pub mod gpu;
pub mod job;
pub mod killed;
pub mod limits;
pub mod listener;
pub mod observations;
pub mod orders;
pub mod paths;
pub mod plugin_line;
pub mod programs;
pub mod ranks;
pub mod record;
pub mod request;
pub mod script;
pub mod step;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod text;
pub mod trusted;
pub mod usage;

pub use failure::{Failure, Fault, Refusal, Undetermined};
pub use gpu::{ComputeMode, Gpu, GpuUuid, Inventory};
pub use job::{JobId, Scheduler};
pub use limits::{Percent, Priority};
pub use paths::{JobPaths, Paths};
pub use request::{Mode, Request};
