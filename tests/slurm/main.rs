//! Cells on a real Slurm: every group brings a throw-away cluster up (see `tests::slurm`), runs its cells one after the
//! other, and after each takes an independent look: no job, no process, no file, no mount left, no node drained.
//!
//! `cargo test -p tests --test slurm [WORD…]` runs the cells whose `group::name` holds one of the words.

mod burst;
mod devices;
mod failures;
mod leftovers;
mod matrix;
mod mps;
mod plain;
mod runner;
mod shapes;
mod sites;
mod stack;
mod stamp;
mod steps;

use std::process::ExitCode;

fn main() -> ExitCode {
    runner::run(&[
        plain::GROUP,
        mps::OPTIONAL,
        mps::REQUIRED,
        matrix::OPTIONAL,
        matrix::REQUIRED,
        shapes::GROUP,
        steps::GROUP,
        steps::MEMORY,
        steps::MEMORY_CGROUP,
        failures::OPTIONAL,
        failures::REQUIRED,
        sites::AUTOMATIC,
        sites::SHARED,
        sites::CONTAINER,
        sites::CGROUP,
        devices::MINORS,
        devices::MINORS_FREE,
        devices::REVERSED,
        devices::REVERSED_FREE,
        devices::PARTIAL,
        devices::PARTIAL_FREE,
        devices::FIRST,
        stack::GROUP,
        leftovers::GROUP,
        burst::GROUP,
    ])
}
