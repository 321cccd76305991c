//! Power cuts: a virtual machine loses its power after each tenth of a second of a job's life, and
//! boots again from the disk that is left.

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context as _, Result, bail, ensure};

use crate::cargo::{self, target_directory};
use crate::files::emptied;
use crate::machine::{self, Cells, Machine};

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

struct Row {
    doing: String,
    left: Option<String>,
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
    let (said, code) = base.run(&cells(INSTALLS), None);
    ensure!(matches!(code, Ok(0)), "no node to cut: {said}");
    let next = Mutex::new((0..options.cuts).map(|at| options.first + at * options.step));
    let rows = Mutex::new(Vec::<Row>::new());
    let is_over = || {
        rows.lock()
            .is_ok_and(|rows| rows.iter().any(|row| row.doing == AFTER))
    };
    let work = || -> Result<()> {
        let take = || next.lock().ok().and_then(|mut next| next.next());
        while let Some(after_ms) = take().filter(|_| !is_over()) {
            let then = if options.drains { "drains" } else { "" };
            let when = format!("{after_ms} {then}");
            let row = cut(&base, &place.join(after_ms.to_string()), &when, &cells)?;
            let left = row.left.as_deref().unwrap_or("nothing left");
            println!("{after_ms:>6} ms  {:<20} {left}", row.doing);
            rows.lock().expect("no thread panics").push(row);
        }
        Ok(())
    };
    let count = std::thread::available_parallelism().map_or(2, NonZero::get);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
        let ended = workers
            .into_iter()
            .map(|worker| worker.join().expect("no thread panics"));
        ended.collect::<Result<Vec<_>>>()
    })?;
    let rows = rows.into_inner().expect("no thread panics");
    let bad: Vec<_> = rows.iter().filter(|row| row.left.is_some()).collect();
    println!("{} cuts, {} left something", rows.len(), bad.len());
    match bad.first() {
        None => Ok(()),
        Some(row) => bail!("a cut left something {}", row.doing),
    }
}

fn cut(
    base: &Machine,
    place: &Path,
    when: &str,
    cells: &dyn Fn(&str) -> Vec<Cells>,
) -> Result<Row> {
    let machine = Machine::kept(base.system(), place)?;
    let (said, _) = machine.run(&cells(LOSES), Some(when));
    let doing = said.lines().find_map(|line| line.split_once(CUT));
    let (_, doing) = doing.with_context(|| format!("its power stayed: {said}"))?;
    let (again, code) = machine.run(&cells(BOOTS), None);
    fs::remove_dir_all(place).with_context(|| format!("'{}'", place.display()))?;
    Ok(Row {
        doing: doing.to_owned(),
        // A test that is not there fails nothing.
        left: (!matches!(code, Ok(0)) || !again.contains(" 1 passed;")).then_some(again),
    })
}
