//! The Slurm plugin `spank_mps.so`: reads the flags, calls the two programs, sets each task's
//! environment.
//!
//! `sys` is Slurm's ABI, and calls `plugin`. `plugin` hands each callback to the module of the
//! program that Slurm runs: `submission` (srun, sbatch, salloc), `job_prolog` (job_prolog and
//! job_epilog), `step` and `ending` (slurmstepd, root), `task` (its forked child, the user).
//!
//! No NVML, no CUDA, no threads. `slurm_spank_init` makes all state: one process may load, unload
//! and load the plugin again.
#![deny(unsafe_code)]

mod ending;
mod handle;
mod job_prolog;
mod oci;
mod plugin;
mod state;
mod step;
mod submission;
#[allow(unsafe_code)]
mod sys;
mod task;
mod this_node;
mod unplugged;

#[cfg(test)]
mod tests;
