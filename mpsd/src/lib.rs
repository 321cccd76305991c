//! Gives a batch job its own NVIDIA Multi-Process Service (MPS) and takes it away again without a
//! trace. Each module imports only from those above it (a test holds this):
//!
//! 1. [`plan`]: request + settings + inventory → plan or refusal. Pure.
//! 2. [`job`]: the life of a job, generic over the node.
//! 3. [`node`]: this node, as root changes it: NVML, directories, processes, cgroups.
//! 4. [`supervisor`]: `mpsd`, run as the job's user.
//! 5. [`cli`]: what the programs share: command lines, and what they tell.
#![deny(unsafe_code)]
#![allow(missing_docs, missing_debug_implementations)]

pub mod cli;
pub mod job;
pub mod node;
pub mod plan;
pub mod supervisor;
