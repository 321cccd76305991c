//! `mpsctl sweep -- COMMAND`: how many copies of the user's own command do best on the job's GPUs,
//! and with which share.

mod configuration;
mod measure;
mod metric;
mod outcome;

use crate::gpus::Gpus;
use crate::places::{Places, nodes_of_step};
use crate::progress::Progress;
use crate::setting::{Setting, code_of};
use crate::share::Share;
use anyhow::Result;
use configuration::Configuration;
use ctl::{Caller, NAME, complain, say, say_json};
use measure::{Bench, MeasureError};
use metric::Metric;
use mpsd_core::failure::EXIT_REFUSED;
use nix::sys::signal::Signal;
use outcome::{Outcome, Row};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

#[derive(Debug, Clone, clap::Args)]
pub struct Sweep {
    /// The job; from the scheduler's variables if not given
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// Copies of the command at once, on all of the job's GPUs of this node together
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: Vec<u32>,
    /// Thread percentage of each client: none, auto (200/n), 100/n, a number; n: clients on a GPU
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "none,auto"
    )]
    threads: Vec<Share>,
    /// End each run after this long. Without --metric a copy that ended earlier starts again.
    /// Without this, a run lasts until all copies have ended
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: Option<u32>,
    /// Take the figure that each copy writes: the first group of this regular expression, or the
    /// number beside its match; the last match counts. If its unit is us, ms or s, each match is
    /// the time of one request: their rate counts, and the table has their 99th percentile. Without
    /// --metric completions are counted
    #[arg(long, value_name = "REGEX")]
    metric: Option<Metric>,
    /// Measure everything N times, and take the medians
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Leave out the runs without MPS
    #[arg(long)]
    only_mps: bool,
    /// One JSON object instead of the table
    #[arg(long)]
    pub json: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Sweep {
    pub(super) fn run(&self, caller: &Caller<'_>, setting: &Setting) -> Result<u8> {
        nodes_of_step(caller.env, "sweep", "measure beside the others")?;
        let places = Places::of(caller, "sweep")?;
        places.must_be_unlimited()?;
        let bench = Bench {
            command: &self.command,
            metric: self.metric.as_ref(),
            limit: self.seconds.map(u64::from).map(Duration::from_secs),
        };
        let mut gpus = Gpus::of(&places.gpus, &setting.daemon, &caller.settings().0.nvml);
        let mut outcome = self.outcome(&places, gpus.as_ref(), (caller.env)("PBS_JOBID").is_some());
        let interrupted = self.measure_all(&bench, &places, setting, &mut gpus, &mut outcome);
        self.print(&outcome)?;
        if let Err(signal) = interrupted {
            let then = "every copy of the command has been ended";
            complain(NAME, &format!("sweep: ended by {signal}; {then}"));
            return Ok(code_of(signal));
        }
        let any = outcome.rows.iter().any(|row| row.throughput.is_some());
        Ok(if any { 0 } else { EXIT_REFUSED })
    }

    /// If the GPUs are exclusive, adds one client on each, with which the others are compared.
    fn counts(&self, places: &Places) -> BTreeSet<u32> {
        let one = (places.is_exclusive() && !self.only_mps).then(|| places.count());
        self.clients.iter().copied().chain(one).collect()
    }

    fn outcome(&self, places: &Places, gpus: Option<&Gpus>, pbs: bool) -> Outcome {
        let mut notes = Vec::new();
        if places.is_exclusive() && !self.only_mps {
            notes.push(
                "the job made its GPUs exclusive, and its MPS server holds them: nothing runs there outside its MPS, so \"one after \
                 another\" is one client at a time under MPS; for the rate without MPS run the same 'mpsctl sweep' in a job without --mps"
                    .to_owned(),
            );
        }
        let most = self.clients.iter().max().copied().unwrap_or(1);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if most as usize > cores {
            notes.push(format!(
                "up to {most} clients share {cores} cores: ask for more (Slurm: -c, OpenPBS: ncpus, \
                 Torque: ppn), or some of the loss is theirs"
            ));
        }
        let (unit, time_unit) = match &self.metric {
            None => ("completions an hour", None),
            Some(metric) => match metric.rate {
                None => (metric.unit(), None),
                Some((_, period)) => (period, Some(metric.unit().to_owned())),
            },
        };
        Outcome {
            unit: unit.to_owned(),
            time_unit,
            gpus: places.count(),
            gpu_memory_mib: gpus.and_then(|gpus| gpus.total_mib),
            most_clients: places.most_clients(),
            pbs,
            rows: Vec::new(),
            notes,
        }
    }

    fn measure_all(
        &self,
        bench: &Bench<'_>,
        places: &Places,
        setting: &Setting,
        gpus: &mut Option<Gpus>,
        outcome: &mut Outcome,
    ) -> Result<(), Signal> {
        let mut shares: Vec<Option<Share>> = Vec::new();
        if !self.only_mps && !places.is_exclusive() {
            shares.push(None);
        }
        if places.has_mps() {
            shares.extend(self.threads.iter().copied().map(Some));
        }
        let of = |clients| {
            let all = shares.iter().copied();
            all.map(move |share| Configuration { clients, share })
        };
        let all: Vec<Configuration> = self.counts(places).into_iter().flat_map(of).collect();
        let row = |what: &Configuration| Row::of(*what, places.on_a_gpu(what.clients));
        outcome.rows = all.iter().map(row).collect();
        let same = |what: &Configuration| what.measured_as(&shares, outcome.gpus);
        let same: Vec<Configuration> = all.iter().map(same).collect();
        let mut broken: Vec<Configuration> = Vec::new();
        let progress = Progress::new(all.len() as u64 * u64::from(self.repeat));
        let mut rounds = (0..self.repeat).flat_map(|_| 0..all.len());
        let ended = rounds.try_for_each(|at| {
            let what = all[at];
            // With the same share, as many clients or more would fail too.
            let fails = |failed: &Configuration| {
                failed.share == what.share && failed.clients <= what.clients
            };
            if same[at] == what && !broken.iter().any(fails) {
                match measure::measure(bench, places, what, setting, gpus, &progress) {
                    Ok(measured) => {
                        let (rate, unit) = (measured.throughput, &outcome.unit);
                        progress.tell(&format!("{what}: {rate:.2} {unit}"));
                        outcome.rows[at].add(&measured);
                    }
                    Err(MeasureError::Interrupted(signal)) => return Err(signal),
                    Err(MeasureError::Failed(why)) => {
                        broken.push(what);
                        outcome.notes.push(format!("{what}: {why}"));
                        outcome.rows[at].failed = Some(why);
                    }
                }
            }
            progress.step();
            Ok(())
        });
        progress.finish();
        let others = same.iter().enumerate();
        for (at, same) in others.filter(|(at, same)| **same != all[*at]) {
            if let Some(source) = all.iter().position(|what| what == same) {
                let (source, row) = (outcome.rows[source].clone(), &mut outcome.rows[at]);
                *row = Row {
                    threads: row.threads.take(),
                    percent: row.percent,
                    ..source
                };
            }
        }
        ended
    }

    fn print(&self, outcome: &Outcome) -> Result<()> {
        if !self.json {
            say(&outcome.text());
            return Ok(());
        }
        let mut value = serde_json::to_value(outcome)?;
        value["advice"] = outcome.advice().into();
        say_json(&value);
        Ok(())
    }
}
