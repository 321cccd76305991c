//! Power cuts: a virtual machine loses its power after each tenth of a second of a job's life, and
//! boots again from the disk that is left.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use anyhow::{Context as _, Result, bail, ensure};
use fs_err as fs;

use crate::cargo::{self, target_directory};
use crate::files::emptied;
use crate::machine::{self, Cells, Machine, side_by_side};

/// What a machine says before it loses its power, with what the job was doing.
const CUT: &str = "the power is cut: ";
/// What it says then if the job's life was over.
const AFTER: &str = "after the job";
/// The program and its tests of `tests/vm/cut.rs`.
const PROGRAM: &str = "vm";
const INSTALLS: &str = "cut::a_node_is_installed";
const LOSES: &str = "cut::a_node_loses_its_power";
const BOOTS: &str = "cut::a_node_that_lost_its_power_boots_without_a_trace_of_the_job";

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Milliseconds of the machine's time between srun and the first cut
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Milliseconds between two cuts
    #[arg(long, default_value_t = 100)]
    step: u64,
    /// Cuts, if the job lives so long
    #[arg(long, default_value_t = 100)]
    cuts: u64,
    /// The job finds no control daemon, which drains the node
    #[arg(long)]
    drains: bool,
}

/// Cuts until a job has ended before its cut.
pub fn run(options: &Options) -> Result<()> {
    cargo::build("build --workspace --lib --bins")?;
    machine::packages()?;
    let programs = machine::programs()?;
    let cells = |test: &str| {
        vec![(
            programs[PROGRAM].clone(),
            vec![test.to_owned(), "--nocapture".to_owned()],
        )]
    };
    let place = target_directory()?.join("tmp/cuts");
    emptied(&place)?;
    let base = Machine::kept(&machine::system()?, &place.join("base"))?;
    let (said, is_installed) = base.run(&cells(INSTALLS), None);
    ensure!(is_installed, "no node to cut: {said}");
    let is_over = AtomicBool::new(false);
    let (made, bad) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let times = (0..options.cuts).map(|at| options.first + at * options.step);
    side_by_side(times.take_while(|_| !is_over.load(SeqCst)), |after_ms| {
        let then = if options.drains { "drains" } else { "" };
        let when = format!("{after_ms} {then}");
        let (doing, left) = cut(&base, &place.join(after_ms.to_string()), &when, &cells)?;
        let shown = left.as_deref().unwrap_or("nothing left");
        println!("{after_ms:>6} ms  {doing:<20} {shown}");
        made.fetch_add(1, SeqCst);
        if doing == AFTER {
            is_over.store(true, SeqCst);
        }
        let mut bad = bad.lock().expect("no thread panics");
        bad.extend(left.map(|_| doing));
        Ok(())
    })?;
    let (made, bad) = (
        made.into_inner(),
        bad.into_inner().expect("no thread panics"),
    );
    println!("{made} cuts, {} left something", bad.len());
    match bad.first() {
        None => Ok(()),
        Some(doing) => bail!("a cut left something {doing}"),
    }
}

/// What the job was doing, and what was left of it.
fn cut(
    base: &Machine,
    place: &Path,
    when: &str,
    cells: &dyn Fn(&str) -> Vec<Cells>,
) -> Result<(String, Option<String>)> {
    let machine = Machine::kept(&base.system, place)?;
    let (said, _) = machine.run(&cells(LOSES), Some(when));
    let doing = said.lines().find_map(|line| line.split_once(CUT));
    let (_, doing) = doing.with_context(|| format!("its power stayed: {said}"))?;
    let (again, is_right) = machine.run(&cells(BOOTS), None);
    fs::remove_dir_all(place)?;
    // A test that is not there fails nothing.
    let left = (!is_right || !again.contains(" 1 passed;")).then_some(again);
    Ok((doing.to_owned(), left))
}
