//! The Slurm plugin `spank_mps.so`: reads the flags, calls the two programs, sets each task's environment.
//!
//! | module | what |
//! |---|---|
//! | `sys` | Slurm's ABI and fork/exec; the only `unsafe` of this crate |
//! | `handle` | the traits `handle::Slurm` and `handle::Node` between the ABI and everything else |
//! | `arguments` | the `key=value` words of the line in plugstack.conf |
//! | `options` | `--mps…`: table, check at submission, values as they arrive on a node |
//! | `plugin` | one function a callback, a match on the context |
//! | `job_script` | `job_prolog`, `job_epilog`: a process of its own, root |
//! | `stepd` | a step's own daemon: slurmstepd, root |
//! | `task` | `task_init`: the forked child, the user |
//! | `node` | files of this node, as `handle::Node` |
//!
//! No NVML, no CUDA, no threads. Nothing lives outside what `slurm_spank_init` makes: one process may load, unload
//! and load the plugin again.
#![deny(unsafe_code)]

mod arguments;
mod handle;
mod job_script;
mod node;
mod options;
mod plugin;
mod stepd;
#[allow(unsafe_code)]
mod sys;
mod task;

#[cfg(test)]
mod tests;
