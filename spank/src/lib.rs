//! The Slurm plugin `spank_mps.so`: reads the flags, calls the two programs, sets each task's environment.
//!
//! | module | what |
//! |---|---|
//! | `sys` | Slurm's ABI and fork/exec; the only `unsafe` of this crate |
//! | `handle` | the traits `handle::Slurm` and `handle::Node` between the ABI and everything else |
//! | `arguments` | the `key=value` words of the line in plugstack.conf |
//! | `plugin` | one function a callback: it chooses by the program that Slurm runs |
//! | `state` | what the callbacks of one process share |
//! | `submission` | srun, sbatch, salloc |
//! | `job_script` | `job_prolog`, `job_epilog`: `slurmstepd spank prolog`, a process of its own, root |
//! | `stepd` | slurmstepd, root: a step's own daemon |
//! | `task` | `task_init`: the forked child of slurmstepd, the user |
//! | `ending` | slurmstepd, root: what a task that failed is told of its MPS |
//! | `unplugged` | nodes that do not load the plugin |
//! | `container` | a second line behind pyxis': what a task sees from its container |
//! | `node` | files of this node, as `handle::Node` |
//!
//! No NVML, no CUDA, no threads. Nothing lives outside what `slurm_spank_init` makes: one process may load, unload
//! and load the plugin again.
#![deny(unsafe_code)]

mod arguments;
mod container;
mod ending;
mod handle;
mod job_script;
mod node;
mod partitions;
mod plugin;
mod state;
mod stepd;
mod submission;
#[allow(unsafe_code)]
mod sys;
mod task;
mod unplugged;

#[cfg(test)]
mod tests;
