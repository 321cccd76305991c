//! Cells on a real Slurm: every group brings a throw-away cluster up (see `tests::slurm`), runs its cells one after the
//! other, and after each takes an independent look: no job, no process, no file, no mount left, no node drained.
//!
//! `cargo test -p tests --test slurm [WORD…]` runs the cells whose `group::name` holds one of the words.

mod burst;
mod containers;
mod devices;
mod failures;
mod held;
mod leftovers;
mod matrix;
mod mig;
mod mps;
mod no_room;
mod partitions;
mod plain;
mod runner;
mod seen;
mod selftest;
mod shapes;
mod site_matrix;
mod sites;
mod stack;
mod steps;
mod sweep;
mod unplugged;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// All groups but the site matrix.
const GROUPS: &[runner::Group] = &[
    plain::GROUP,
    mps::OPTIONAL,
    mps::REQUIRED,
    matrix::OPTIONAL,
    matrix::REQUIRED,
    shapes::GROUP,
    steps::GROUP,
    steps::MEMORY,
    steps::MEMORY_CGROUP,
    sweep::GROUP,
    selftest::GROUP,
    held::GROUP,
    failures::OPTIONAL,
    failures::REQUIRED,
    failures::HELD,
    sites::AUTOMATIC,
    sites::SHARED,
    sites::NO_GPUS,
    sites::NO_FLAGS,
    sites::CONTAINER,
    sites::CGROUP,
    devices::MINORS,
    devices::MINORS_FREE,
    devices::REVERSED,
    devices::REVERSED_FREE,
    devices::PARTIAL,
    devices::PARTIAL_FREE,
    devices::FIRST,
    mig::CONFINED,
    mig::FREE,
    partitions::GROUP,
    seen::GROUP,
    stack::GROUP,
    stack::CONFIGLESS,
    containers::GROUP,
    unplugged::OPTIONAL,
    unplugged::REQUIRED,
    leftovers::GROUP,
    leftovers::ALONE,
    no_room::GROUP,
    burst::GROUP,
];

fn main() -> ExitCode {
    let started = Instant::now();
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(at) = words.iter().position(|word| word == "--prefix") {
        let taken: Vec<String> = words.drain(at..(at + 2).min(words.len())).collect();
        let Some(prefix) = taken.get(1) else {
            eprintln!("--prefix needs the directory that a Slurm was installed to");
            return ExitCode::from(2);
        };
        tests::slurm::use_slurm_of(Path::new(prefix));
    }
    if words.iter().any(|word| word == "--list") {
        site_matrix::names().for_each(|name| println!("{name}"));
        return ExitCode::SUCCESS;
    }
    words.retain(|word| !word.starts_with('-'));
    let mut tally = runner::Tally::default();
    runner::run(GROUPS, &words, &mut tally);
    site_matrix::run(&words, &mut tally);
    tally.end(started)
}
