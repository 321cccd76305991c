//! `mpsctl sweep -- COMMAND`: how many copies of the user's own command do best on the job's GPUs, and with which share.

pub mod configuration;
mod copies;
mod measure;
mod metric;
pub mod outcome;
mod places;
pub mod plot;

use super::attach::Caller;
use super::terminal::say;
use super::{NAME, complain};
use crate::scheduler::setup::VerbError;
use crate::sys::family;
use crate::sys::signals::Signals;
use configuration::{Configuration, Share};
use indicatif::{ProgressBar, ProgressStyle};
use measure::{Bench, MeasureError, Memory};
use metric::Metric;
use mpsd_core::failure::{EXIT_NODE, EXIT_REFUSED};
use nix::sys::signal::Signal;
use outcome::{Outcome, Row};
use places::Places;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A shell's exit code for a command that a signal ended, less the signal's number.
const BY_SIGNAL: u8 = 128;

/// `mpsctl sweep`.
#[derive(Debug, Clone, clap::Args)]
pub struct Sweep {
    /// The job; from the scheduler's variables if not given
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// How many copies of the command at once, on all of the job's GPUs of this node together
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub clients: Vec<u32>,
    /// Thread percentage of each client: none, auto (200/n), 100/n, a number; n: clients on a GPU
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "none,auto")]
    pub threads: Vec<Share>,
    /// End each run after this long, and start a copy that ended before again, if there is no --metric; otherwise a run lasts until
    /// all copies have ended
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: Option<u32>,
    /// The figure that each copy writes: the first group of this regular expression, or the number beside its match; the last
    /// match counts. Without it completions are counted
    #[arg(long, value_name = "REGEX")]
    metric: Option<Metric>,
    /// Measure everything so often, and take the medians
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeat: u32,
    /// Leave the runs without MPS out
    #[arg(long)]
    pub only_mps: bool,
    /// One JSON object instead of the table
    #[arg(long)]
    pub json: bool,
    /// Write the plot to FILE, as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl Sweep {
    /// Runs it, prints the result, and returns the exit code. `daemon` is the program `mpsd`, which asks NVML.
    ///
    /// # Errors
    /// The caller is in no job, its job has limits of its own, or nothing could be measured.
    pub fn run(&self, caller: &Caller<'_>, daemon: &Path) -> Result<u8, VerbError> {
        let places = Places::of(caller)?;
        let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
        let signals = Signals::block(&signals).map_err(|errno| node_error(format!("signals: {errno}")))?;
        family::adopt_orphans().map_err(|errno| node_error(format!("orphans: {errno}")))?;
        let bench = Bench {
            command: &self.command,
            places: &places,
            metric: self.metric.as_ref(),
            limit: self.seconds.map(|seconds| Duration::from_secs(seconds.into())),
            signals: &signals,
        };
        let mut memory = Memory::of(&places.gpus, daemon, &caller.settings().0.nvml);
        let mut outcome = self.outcome(&places, memory.as_ref(), (caller.env)("PBS_JOBID").is_some());
        let told = self.measure_all(&bench, &mut memory, &mut outcome);
        drop(memory);
        family::end_descendants();
        self.print(&outcome)?;
        if let Some(signal) = told {
            complain(
                NAME,
                &format!("sweep: ended by {signal}; every copy of the command has been ended"),
            );
            return Ok(BY_SIGNAL.saturating_add(signal as i32 as u8));
        }
        let any = outcome.rows.iter().any(|row| row.throughput.is_some());
        Ok(if any { 0 } else { EXIT_REFUSED })
    }

    fn outcome(&self, places: &Places, memory: Option<&Memory>, pbs: bool) -> Outcome {
        let mut notes = Vec::new();
        if places.is_exclusive() && !self.only_mps {
            let why = "without MPS left out: the job made its GPUs exclusive, and nothing runs there outside its MPS";
            notes.push(format!(
                "{why} (a site that sets compute_mode = \"keep\" can compare)"
            ));
        }
        let most = self.clients.iter().max().copied().unwrap_or(1);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if most as usize > cores {
            notes.push(format!(
                "up to {most} clients share {cores} cores: ask for more (-c), or some of the loss is theirs"
            ));
        }
        Outcome {
            unit: self
                .metric
                .as_ref()
                .map_or("completions an hour", Metric::unit)
                .to_owned(),
            gpus: u32::try_from(places.gpus.len()).unwrap_or(1).max(1),
            gpu_memory_mib: memory.and_then(|memory| memory.total_mib),
            most_clients: places.most_clients(),
            pbs,
            rows: Vec::new(),
            notes,
        }
    }

    /// The shares to measure in this job; `None`: without MPS.
    fn shares(&self, places: &Places) -> Vec<Option<Share>> {
        let mut shares = Vec::new();
        if !self.only_mps && !places.is_exclusive() {
            shares.push(None);
        }
        if places.has_mps() {
            shares.extend(self.threads.iter().copied().map(Some));
        }
        shares
    }

    /// Measures all configurations, `repeat` times in turn. Returns the signal that ended it.
    fn measure_all(
        &self,
        bench: &Bench<'_>,
        memory: &mut Option<Memory>,
        outcome: &mut Outcome,
    ) -> Option<Signal> {
        let shares = self.shares(bench.places);
        let counts: BTreeSet<u32> = self.clients.iter().copied().collect();
        let of = |clients| {
            shares.iter().map(move |share| Configuration {
                clients,
                share: *share,
            })
        };
        let all: Vec<Configuration> = counts.into_iter().flat_map(of).collect();
        let row = |what: &Configuration| Row::of(*what, bench.places.on_a_gpu(what.clients));
        outcome.rows = all.iter().map(row).collect();
        let mut rounds = Rounds {
            bench,
            memory,
            bar: bar(all.len() as u64 * u64::from(self.repeat)),
            shares: &shares,
            all: &all,
            broken: Vec::new(),
            outcome,
        };
        let mut places = (0..self.repeat).flat_map(|_| 0..all.len());
        let told = places.find_map(|at| rounds.step(at).err());
        rounds.bar.finish_and_clear();
        told
    }

    fn print(&self, outcome: &Outcome) -> Result<(), VerbError> {
        if let Some(file) = &self.svg {
            let command: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
            let title = mpsd_core::text::one_line(&command.join(" "), 60);
            let text = plot::svg(outcome, &title).map_err(|why| node_error(format!("plot: {why}")))?;
            let unwritable = |error| node_error(format!("cannot write '{}': {error}", file.display()));
            std::fs::write(file, text).map_err(unwritable)?;
        }
        if !self.json {
            say(&outcome.text());
            return Ok(());
        }
        let mut value = serde_json::to_value(outcome).map_err(|error| node_error(error.to_string()))?;
        if let Some(object) = value.as_object_mut() {
            object.insert("advice".to_owned(), outcome.advice().into());
        }
        say(&format!("{value:#}\n"));
        Ok(())
    }
}

fn node_error(line: String) -> VerbError {
    let code = EXIT_NODE;
    VerbError { line, code }
}

/// A sweep under way.
struct Rounds<'a> {
    bench: &'a Bench<'a>,
    memory: &'a mut Option<Memory>,
    bar: ProgressBar,
    shares: &'a [Option<Share>],
    all: &'a [Configuration],
    /// Those that failed: with the same share, as many clients or more would fail too.
    broken: Vec<Configuration>,
    /// A row for each of `all`.
    outcome: &'a mut Outcome,
}

impl Rounds<'_> {
    /// Measures the configuration at `at`. Returns the signal that ended it.
    fn step(&mut self, at: usize) -> Result<(), Signal> {
        let Some(what) = self.all.get(at).copied() else {
            return Ok(());
        };
        let same = what.measured_as(self.shares, self.outcome.gpus);
        if same != what {
            let place = self.all.iter().position(|other| *other == same);
            let row = place.and_then(|place| self.outcome.rows.get(place));
            // There is no new figure if it failed in this round.
            let known = self.outcome.rows.get(at).map_or(0, |row| row.runs.len());
            let figures = row.and_then(|row| Some((*row.runs.get(known)?, row.memory_mib)));
            self.add(at, figures);
        } else if !self.is_broken(what) {
            match self.bench.measure(what, self.memory, &self.bar) {
                Ok(measured) => {
                    let line = format!("{what}: {:.2} {}", measured.throughput, self.outcome.unit);
                    tell(&self.bar, &line);
                    self.add(at, Some((measured.throughput, measured.memory_mib)));
                }
                Err(MeasureError::Interrupted(signal)) => return Err(signal),
                Err(MeasureError::Failed(why)) => {
                    self.broken.push(what);
                    self.outcome.notes.push(format!("{what}: {why}"));
                    if let Some(row) = self.outcome.rows.get_mut(at) {
                        row.failed = Some(why);
                    }
                }
            }
        }
        self.bar.inc(1);
        Ok(())
    }

    fn is_broken(&self, what: Configuration) -> bool {
        let fails = |failed: &Configuration| failed.share == what.share && failed.clients <= what.clients;
        self.broken.iter().any(fails)
    }

    fn add(&mut self, at: usize, figures: Option<(f64, Option<u64>)>) {
        if let (Some((throughput, memory_mib)), Some(row)) = (figures, self.outcome.rows.get_mut(at)) {
            row.add(throughput, memory_mib);
        }
    }
}

/// Shown on a terminal only.
fn bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    match ProgressStyle::with_template("{bar:24} {pos}/{len}  {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Prints above the bar; without a terminal, into the job's log.
fn tell(bar: &ProgressBar, line: &str) {
    match bar.is_hidden() {
        true => complain(NAME, line),
        false => bar.println(line),
    }
}
