//! A bed under PBS: what each mom does to our installed files, as recorded on
//! OpenPBS 23.06.06 and Torque 6.1.3 (argument vectors, environments, descriptors, time limits,
//! which processes are killed when, what an exit code means).
//!
//! Each node is a mount, host-name, process and IPC namespace over the real root, with a layer of
//! its own. Our files are in their installed places, users are made, daemons run, and all of it
//! ends with the test.

pub mod cluster;
pub mod node;
pub mod openpbs;
pub mod torque;
pub mod wire;

pub const DOUBLE: &str = include_str!("../../mom/double/pbs.py");
pub const RUN_HOOK: &str = include_str!("../../mom/double/run_hook.py");
