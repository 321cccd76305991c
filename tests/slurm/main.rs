//! Cells on a real Slurm: every group brings a throw-away cluster up (see `tests::slurm`), runs its cells one after the
//! other, and after each takes an independent look: no job, no process, no file, no mount left, no node drained.
//!
//! `cargo test -p tests --test slurm [WORD…] [--at-once N]` runs the cells whose `group::name` holds one of the words, on so many
//! clusters at once.

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

/// Groups whose beds stand beside others.
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
    held::TIMED,
    failures::OPTIONAL,
    failures::REQUIRED,
    failures::HELD,
    sites::AUTOMATIC,
    sites::SHARED,
    sites::NO_GPUS,
    sites::NO_FLAGS,
    sites::CONTAINER,
    sites::CGROUP,
    devices::REVERSED,
    devices::REVERSED_FREE,
    devices::FIRST,
    mig::CONFINED,
    mig::FREE,
    partitions::GROUP,
    seen::GROUP,
    containers::GROUP,
    unplugged::OPTIONAL,
    unplugged::REQUIRED,
    leftovers::GROUP,
    no_room::GROUP,
];

/// Those that look for their node's slurmd among all that run: one that does not say where its configuration is could be theirs.
const LOOKING: &[runner::Group] = &[
    devices::MINORS,
    devices::MINORS_FREE,
    devices::PARTIAL,
    devices::PARTIAL_FREE,
];

/// Those that have the machine for themselves: they want to find no slurmd but theirs, or keep all processors busy.
const ALONE: &[runner::Group] = &[stack::GROUP, stack::CONFIGLESS, leftovers::ALONE, burst::GROUP];

/// Beds at once: they mostly wait, and two processors have room for as many.
const AT_ONCE: usize = 4;

fn main() -> ExitCode {
    let started = Instant::now();
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mut value = |option: &str| {
        let at = words.iter().position(|word| word == option)?;
        Some(
            words
                .drain(at..(at + 2).min(words.len()))
                .nth(1)
                .unwrap_or_default(),
        )
    };
    if let Some(prefix) = value("--prefix") {
        if prefix.is_empty() {
            eprintln!("--prefix needs the directory that a Slurm was installed to");
            return ExitCode::from(2);
        }
        tests::slurm::use_slurm_of(Path::new(&prefix));
    }
    let most = tests::slurm::most_beds();
    let at_once = match value("--at-once").map(|number| number.parse::<usize>()) {
        None => AT_ONCE.min(most),
        Some(Ok(number)) if (1..=most).contains(&number) => number,
        Some(_) => {
            eprintln!("--at-once needs a number of clusters: this machine has accounts for 1 to {most}");
            return ExitCode::from(2);
        }
    };
    if words.iter().any(|word| word == "--list") {
        site_matrix::names().for_each(|name| println!("{name}"));
        return ExitCode::SUCCESS;
    }
    words.retain(|word| !word.starts_with('-'));
    let tally = runner::Tally::default();
    let mut beds = runner::beds(LOOKING, &[tests::slurm::CONFIGLESS], &words, &tally);
    beds.extend(runner::beds(GROUPS, &[], &words, &tally));
    beds.extend(site_matrix::beds(&words, &tally));
    tests::beside::run(beds, at_once);
    tests::beside::run(runner::beds(ALONE, &[], &words, &tally), 1);
    tally.end(started)
}
