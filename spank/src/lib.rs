//! The Slurm plugin `spank_mps.so`: reads the flags, calls the two programs, sets each task's environment.
//!
//! | module | what |
//! |---|---|
//! | `sys` | Slurm's ABI and fork/exec; the only `unsafe` of this crate |
//! | `handle` | the traits `handle::Slurm` and `handle::Node` between the ABI and everything else |
//! | `arguments` | the `key=value` words of the line in plugstack.conf |
//! | `plugin` | each callback, by the program that Slurm runs |
//! | `state` | what the callbacks of one process share |
//! | `submission` | srun, sbatch, salloc |
//! | `job_script` | `job_prolog`, `job_epilog`: `slurmstepd spank prolog`, a process of its own, root |
//! | `stepd` | slurmstepd, root: a step's own daemon |
//! | `task` | `task_init`: the forked child of slurmstepd, the user; also in a container, behind pyxis |
//! | `ending` | slurmstepd, root: what the user of a task that failed is told of its MPS |
//! | `unplugged` | nodes that do not load the plugin |
//! | `node` | files of this node, as `handle::Node` |
//!
//! No NVML, no CUDA, no threads. All state is made by `slurm_spank_init`: one process may load, unload and load the
//! plugin again.
#![deny(unsafe_code)]

mod arguments;
mod ending;
mod handle;
mod job_script;
mod node;
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
