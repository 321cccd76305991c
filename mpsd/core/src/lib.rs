//! What every program of the suite knows of a job, the Slurm plugin included: its request, the configuration, the record that
//! root leaves for the job's tasks, job ids, paths, GPU names, and the three kinds of failure.
//!
//! The plugin runs inside `slurmd` and links this crate alone; so nothing in here starts a process or talks to a GPU, and
//! every wait has a [`deadline`]. The only files it opens are the configuration and the record,
//! through [`trusted`] and [`mod@file`], this process's own status, and `/dev/null`. [`listener`] asks the kernel whether a socket is held open.
#![forbid(unsafe_code)]

pub mod bind;
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
pub mod partitions;
pub mod paths;
pub mod ranks;
pub mod record;
pub mod replace;
pub mod request;
pub mod step;
pub mod text;
pub mod trusted;

pub use failure::{Failure, Fault, Refusal, Undetermined};
pub use gpu::{ComputeMode, Gpu, GpuUuid, Inventory};
pub use job::{JobId, Scheduler};
pub use limits::{Percent, Priority};
pub use paths::{JobPaths, Paths};
pub use request::{Mode, Request};
