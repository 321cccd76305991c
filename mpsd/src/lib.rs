//! Gives a batch job its own NVIDIA Multi-Process Service (MPS) and takes it away again without a
//! trace.
//!
//! The modules, in layer order; each imports only from those above it (a test holds this):
//!
//! 1. [`sys`]: the kernel. Files, processes, privileges, cgroups; the only `unsafe` of this crate.
//! 2. [`scheduler`]: what Slurm, Torque and OpenPBS say of a job, a folder each.
//! 3. [`plan`]: request + settings + inventory → plan or refusal. Pure.
//! 4. [`job`]: the life of a job: how it begins and ends, what is remembered of it. Generic over
//!    the node.
//! 5. [`node`]: this node, as root changes it: NVML, directories, processes, cgroups.
//! 6. [`daemon`]: the daemon `mpsd`, run as the job's user.
//! 7. [`cli`]: `mpsctl` and what the programs share.
//!
//! The words that all of them share, and the plugin with them, are the crate [`mpsd_core`].
#![deny(unsafe_code)]

pub mod cli;
pub mod daemon;
pub mod job;
pub mod node;
pub mod plan;
pub mod scheduler;
pub mod sys;
