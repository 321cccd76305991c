//! One configuration, measured once.

use super::configuration::Configuration;
use super::copies::{self, CopyOrder, CopyResult};
use super::metric::Metric;
use super::places::Places;
use crate::node::worker::{NvmlWorker, Question};
use crate::sys::family::Family;
use crate::sys::signals::Signals;
use indicatif::ProgressBar;
use mpsd_core::gpu::GpuProcess;
use mpsd_core::{GpuUuid, Inventory, listener};
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time between two steps of the progress bar.
const TURN: Duration = Duration::from_millis(200);
/// Time between two readings of the memory.
const MEMORY_PERIOD: Duration = Duration::from_secs(1);
/// Longest wait for NVML, which is then not asked again.
const NVML_PATIENCE: Duration = Duration::from_secs(5);
/// Seconds of an hour.
const HOUR: f64 = 3600.0;

/// What all configurations share.
#[derive(Debug)]
pub struct Bench<'a> {
    pub command: &'a [OsString],
    pub places: &'a Places,
    pub metric: Option<&'a Metric>,
    pub limit: Option<Duration>,
    /// The signals that end the sweep.
    pub signals: &'a Signals,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Of all clients: completions an hour, or the sum of their figures.
    pub throughput: f64,
    /// The highest of all readings, for each client, MiB.
    pub memory_mib: Option<u64>,
}

/// Why a configuration has no figure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MeasureError {
    /// A signal ends the whole sweep.
    Interrupted(Signal),
    /// One line.
    Failed(String),
}

impl Bench<'_> {
    /// Measures it.
    ///
    /// # Errors
    /// A signal came, or a copy failed.
    pub fn measure(
        &self,
        what: Configuration,
        memory: &mut Option<Memory>,
        bar: &ProgressBar,
    ) -> Result<Measured, MeasureError> {
        let failed = |why: String| MeasureError::Failed(why);
        let environments = self
            .places
            .environments(what.clients, what.share)
            .map_err(|refusal| failed(refusal.to_string()))?;
        if what.share.is_some() {
            // Without a daemon the copies would run outside MPS, and the figures would be wrong.
            let heard = environments
                .iter()
                .try_for_each(|changes| listener::expect(changes));
            heard.map_err(|ended| failed(ended.to_string()))?;
        }
        let order = CopyOrder {
            command: self.command,
            environments: &environments,
            metric: self.metric,
            limit: self.limit,
        };
        let work = |end: BorrowedFd<'_>| serde_json::to_vec(&copies::run(&order, end)).unwrap_or_default();
        let mut family =
            Family::start(work).map_err(|errno| failed(format!("no process to be had: {errno}")))?;
        let begin = Instant::now();
        let (mut highest, mut looked) = (None, begin);
        let answer = loop {
            bar.set_message(format!("{what}, {} s", begin.elapsed().as_secs()));
            if let Some(signal) = self.signals.read().ok().flatten() {
                return Err(MeasureError::Interrupted(signal));
            }
            if looked.elapsed() >= MEMORY_PERIOD {
                looked = Instant::now();
                let now = memory
                    .as_mut()
                    .and_then(|memory| memory.of_processes(&family.members()));
                highest = highest.max(now);
            }
            if let Some(answer) = family.wait(&[self.signals.as_fd()], TURN) {
                break answer;
            }
        };
        let answer =
            answer.map_err(|exit| failed(format!("the process that started them ended by {exit}")))?;
        let ended: Vec<CopyResult> =
            serde_json::from_slice(&answer).map_err(|error| failed(error.to_string()))?;
        Ok(Measured {
            throughput: self.throughput(&ended).map_err(failed)?,
            memory_mib: highest.map(|all| all / u64::from(what.clients.max(1))),
        })
    }

    fn throughput(&self, ended: &[CopyResult]) -> Result<f64, String> {
        let said = |copy: &CopyResult| match copy.last.as_str() {
            "" => "it wrote nothing".to_owned(),
            last => format!("its last line: {last}"),
        };
        if let Some((copy, why)) = ended.iter().find_map(|copy| Some((copy, copy.failed.as_ref()?))) {
            return Err(format!("{why}; {}", said(copy)));
        }
        let rates = ended.iter().map(|copy| match self.metric {
            Some(metric) => copy.metric.ok_or_else(|| {
                format!(
                    "nothing that it wrote matches '{}'; {}",
                    metric.pattern(),
                    said(copy)
                )
            }),
            None => Ok(f64::from(copy.completions) / copy.seconds.max(f64::MIN_POSITIVE)),
        });
        let sum: f64 = rates.sum::<Result<f64, String>>()?;
        let together = || {
            let longest = ended
                .iter()
                .map(|copy| copy.seconds)
                .fold(f64::MIN_POSITIVE, f64::max);
            ended.len() as f64 / longest * HOUR
        };
        match (self.metric, self.limit) {
            (Some(_), _) => Ok(sum),
            // Each ran once: the last one's end counts.
            (None, None) => Ok(together()),
            (None, Some(_)) if sum > 0.0 => Ok(sum * HOUR),
            (None, Some(limit)) => Err(format!("none came to its end within {} s", limit.as_secs())),
        }
    }
}

/// The memory of the clients, from NVML, which tells it to an ordinary user.
#[derive(Debug)]
pub struct Memory {
    worker: NvmlWorker,
    gpus: Vec<GpuUuid>,
    /// Of the smallest GPU, MiB; `None`: NVML does not tell it for each.
    pub total_mib: Option<u64>,
}

impl Memory {
    /// `None`: NVML does not answer, or a GPU has no UUID. Then memory is not shown.
    pub fn of(gpus: &[String], worker: &Path, nvml: &str) -> Option<Self> {
        let mut worker = NvmlWorker::start(worker, nvml, NVML_PATIENCE).ok()?;
        let gpus: Vec<GpuUuid> = gpus
            .iter()
            .map(|gpu| GpuUuid::parse(gpu).ok())
            .collect::<Option<_>>()?;
        let inventory: Inventory = worker.ask(&Question::Inventory).ok()?;
        let totals = gpus.iter().map(|gpu| Some(inventory.by_uuid(gpu)?.memory_mib));
        // `None` is less than any number.
        let total_mib = totals.collect::<Option<Vec<_>>>()?.into_iter().min()?;
        Some(Self {
            worker,
            gpus,
            total_mib,
        })
    }

    /// The memory of these processes on the job's GPUs, MiB; `None`: NVML lists none of them.
    pub fn of_processes(&mut self, pids: &[i32]) -> Option<u64> {
        let mut bytes = None;
        for gpu in &self.gpus {
            let listed: Vec<GpuProcess> = self.worker.ask(&Question::Processes(gpu.clone())).ok()?;
            for process in listed.iter().filter(|process| pids.contains(&process.pid)) {
                bytes = Some(bytes.unwrap_or(0) + process.memory?);
            }
        }
        bytes.map(|bytes| bytes >> 20)
    }
}
