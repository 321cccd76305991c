//! The kernel as this suite uses it: processes, files, privileges, cgroups, signals, time. The only `unsafe` of
//! this crate lives in `raw` (and [`descriptors`]), behind functions safe to call. Our programs have one thread, which is what makes
//! forking safe (see [`guard`]).
//!
//! Every wait takes a [`deadline::Deadline`]; everything that a user can touch is reached by descriptor, never
//! twice by name.

pub mod cgroup;
pub mod child;
pub mod deadline;
pub mod descriptors;
pub mod detach;
pub mod files;
pub mod guard;
pub mod inotify;
pub mod lock;
pub mod process;
pub mod process_table;
mod raw;
pub mod remove;
pub mod scarcity;
pub mod signals;
pub mod spawn;
pub mod stdio;

pub use raw::Exit;

#[cfg(test)]
mod testing;
