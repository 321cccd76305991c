//! Cells on a real Slurm. Every group starts a throw-away cluster (see `tests::slurm`) and runs its
//! cells one after the other. After each cell no job, process, file or mount may be left, and no
//! node drained.
//!
//! `cargo test -p tests --test slurm [WORD…] [--at-once N]` runs the cells whose `group::name` has
//! one of the words, on this many clusters at once; with `--exact` those whose name is one.

mod auto;
mod containers;
mod devices;
mod failures;
mod held;
mod jobs;
mod leftovers;
mod matrix;
mod mig;
mod no_room;
mod operations;
mod runner;
mod scripts;
mod seen;
mod selftest;
mod shapes;
mod shared;
mod sites;
mod steps;
mod submission;
mod sweep;
mod unplugged;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

const GROUPS: &[runner::Group] = &[
    matrix::BARE,
    matrix::DEFERRED,
    matrix::CONFINED,
    matrix::CONFIGLESS,
    submission::OPTIONAL,
    submission::REQUIRED,
    shapes::GROUP,
    steps::GROUP,
    steps::ASYNC,
    sweep::GROUP,
    selftest::GROUP,
    held::GROUP,
    held::TIMED,
    failures::OPTIONAL,
    failures::REQUIRED,
    failures::HELD,
    auto::GROUP,
    auto::SHARDS_CONFINED,
    auto::PARTS,
    shared::GROUP,
    shared::SEVERAL,
    shared::SEVERAL_CONFINED,
    shared::CGROUPS,
    shared::SLUIDS,
    sites::CONTAINER,
    devices::REVERSED,
    devices::REVERSED_FREE,
    mig::CONFINED,
    mig::FREE,
    operations::GROUP,
    seen::GROUP,
    containers::GROUP,
    unplugged::OPTIONAL,
    unplugged::REQUIRED,
    leftovers::GROUP,
    no_room::GROUP,
];

/// Groups that search for their node's slurmd among all slurmds. They could mistake a slurmd for
/// theirs that does not say where its configuration is.
const LOOKING: &[runner::Group] = &[
    devices::MINORS,
    devices::MINORS_FREE,
    devices::PARTIAL,
    devices::PARTIAL_FREE,
];

/// Groups that need the machine alone: they must find no foreign slurmd, or they keep all
/// processors busy.
const ALONE: &[runner::Group] = &[leftovers::ALONE, shared::BURST];

/// Beds at once. They mostly wait, so two processors are enough for them.
const AT_ONCE: usize = 5;

fn names() -> Vec<String> {
    let groups = LOOKING.iter().chain(GROUPS).chain(ALONE);
    let of = |group: &runner::Group| {
        let (name, cells) = (group.name, group.cells.iter());
        cells.map(move |(cell, _)| format!("{name}::{cell}"))
    };
    groups.flat_map(of).chain(scripts::names()).collect()
}

fn main() -> ExitCode {
    let started = Instant::now();
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mut value = |option: &str| {
        let at = words.iter().position(|word| word == option)?;
        let end = (at + 2).min(words.len());
        Some(words.drain(at..end).nth(1).unwrap_or_default())
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
            let need = "--at-once needs a number of clusters";
            eprintln!("{need}: this machine has accounts for 1 to {most}");
            return ExitCode::from(2);
        }
    };
    if words.iter().any(|word| word == "--list") {
        names().iter().for_each(|name| println!("{name}"));
        return ExitCode::SUCCESS;
    }
    words.retain(|word| !word.starts_with('-') || word == ::tests::slurm::EXACT);
    // Else a list of words would test less and less as cells get other names.
    let names = names();
    let is_known = |word: &&String| {
        let of_bed = word.contains("::the_bed_") || word.contains("::the_nodes_");
        of_bed || *word == ::tests::slurm::EXACT || names.iter().any(|name| name.contains(*word))
    };
    if let Some(word) = words.iter().find(|word| !is_known(word)) {
        eprintln!("no cell of the name '{word}': see --list");
        return ExitCode::from(2);
    }
    let tally = runner::Tally::default();
    let mut beds = runner::beds(LOOKING, &[tests::slurm::CONFIGLESS], &words, &tally);
    beds.extend(runner::beds(GROUPS, &[], &words, &tally));
    beds.extend(scripts::beds(&words, &tally));
    tests::beside::run(beds, at_once);
    tests::beside::run(runner::beds(ALONE, &[], &words, &tally), 1);
    tally.end(started)
}
