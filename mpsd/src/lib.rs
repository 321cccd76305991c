//! Gives a batch job its own NVIDIA Multi-Process Service (MPS) and takes it away again without a trace.
//!
//! The modules, in layer order; each imports only from those above it (a test holds this):
//!
//! 1. [`model`]: the words. Requests, limits, jobs, GPUs, paths, plans, the three names of failure. Pure.
//! 2. [`sys`]: the kernel. Files, processes, privileges, cgroups; the only `unsafe` of this crate.
//! 3. [`config`]: `mpsd.toml`. [`scheduler`]: what Slurm, Torque and OpenPBS say of a job.
//! 4. [`policy`]: request + settings + inventory → plan or refusal. [`lifecycle`]: journal, GPU accounts,
//!    the teardown ladder. Both pure: they return effects.
//! 5. [`node`]: performs effects: NVML, control daemon, directories, controllers.
//! 6. [`supervise`]: the daemon `mpsd`, run as the job's user.
//! 7. [`cli`]: `mpsctl` and what the programs share.
#![deny(unsafe_code)]

pub mod cli;
pub mod config;
pub mod lifecycle;
pub mod model;
pub mod node;
pub mod policy;
pub mod scheduler;
pub mod supervise;
pub mod sys;
