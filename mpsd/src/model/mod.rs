//! The words of the suite: no I/O, no clock, no environment.

pub mod environment;
pub mod failure;
pub mod gpu;
pub mod job;
pub mod limits;
pub mod paths;
pub mod plan;
pub mod record;
pub mod request;
pub mod step;
pub mod text;

pub use failure::{Failure, Fault, Refusal, Undetermined};
pub use gpu::{ComputeMode, Gpu, GpuUuid, Inventory};
pub use job::{JobId, Scheduler};
pub use limits::{Percent, Priority};
pub use paths::{JobPaths, Paths};
pub use request::{Mode, Request};
