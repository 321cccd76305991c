//! Gives a batch job its own NVIDIA Multi-Process Service (MPS) and takes it away again without a
//! trace.
//!
//! The modules, in layer order; each imports only from those above it (a test holds this):
//!
//! 1. [`plan`]: request + settings + inventory → plan or refusal. Pure.
//! 2. [`job`]: the life of a job: how it begins and ends, what is remembered of it. Generic over
//!    the node.
//! 3. [`node`]: this node, as root changes it: NVML, directories, processes, cgroups.
//! 4. [`supervisor`]: `mpsd`, run as the job's user.
//! 5. [`cli`]: what the programs share: command lines, and what they tell.
//!
//! Below them are three crates: [`batch`], what Slurm, Torque and OpenPBS say of a job;
//! [`mpsd_sys`], the kernel; [`mpsd_core`], the words that all programs and the plugin share.
#![deny(unsafe_code)]
#![allow(missing_docs, missing_debug_implementations)]

pub mod cli;
pub mod job;
pub mod node;
pub mod plan;
pub mod supervisor;
