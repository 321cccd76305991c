//! One configuration, measured once.

use super::configuration::Configuration;
use super::copies::{self, Bench, CopyResult};
use super::places::Places;
use crate::node::worker::{NvmlWorker, Question};
use crate::sys::family::Family;
use crate::sys::signals::Signals;
use indicatif::ProgressBar;
use mpsd_core::gpu::GpuProcess;
use mpsd_core::{GpuUuid, Inventory, listener};
use nix::sys::signal::Signal;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

const TURN: Duration = Duration::from_millis(200);
const MEMORY_PERIOD: Duration = Duration::from_secs(1);
/// Longest wait for NVML, which is then not asked again.
const NVML_PATIENCE: Duration = Duration::from_secs(5);
const HOUR: f64 = 3600.0;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MeasureError {
    /// A signal ends the whole sweep.
    Interrupted(Signal),
    Failed(String),
}

/// Of all clients, completions an hour or the sum of their figures; and the highest memory of each client, MiB.
pub fn measure(
    bench: &Bench<'_>,
    places: &Places,
    what: Configuration,
    signals: &Signals,
    memory: &mut Option<Memory>,
    bar: &ProgressBar,
) -> Result<(f64, Option<u64>), MeasureError> {
    let failed = MeasureError::Failed;
    let environments = places.environments(what.clients, what.share);
    let environments = environments.map_err(|refusal| failed(refusal.to_string()))?;
    if what.share.is_some() {
        // Without a daemon the copies would run outside MPS, and the figures would be wrong.
        let mut all = environments.iter();
        let heard = all.try_for_each(|changes| listener::expect(changes));
        heard.map_err(|ended| failed(ended.to_string()))?;
    }
    let work =
        |end: BorrowedFd<'_>| serde_json::to_vec(&copies::run(bench, &environments, end)).unwrap_or_default();
    let family = Family::start(work);
    let mut family = family.map_err(|errno| failed(format!("no process to be had: {errno}")))?;
    let begin = Instant::now();
    let (mut highest, mut read_at) = (None, begin);
    let answer = loop {
        bar.set_message(format!("{what}, {} s", begin.elapsed().as_secs()));
        if let Some(signal) = signals.read().ok().flatten() {
            return Err(MeasureError::Interrupted(signal));
        }
        if read_at.elapsed() >= MEMORY_PERIOD {
            read_at = Instant::now();
            let now = memory
                .as_mut()
                .and_then(|memory| memory.of_processes(&family.members()));
            highest = highest.max(now);
        }
        if let Some(answer) = family.wait(&[signals.as_fd()], TURN) {
            break answer;
        }
    };
    let answer = answer.map_err(|exit| failed(format!("the process that started them ended by {exit}")))?;
    let results: Vec<CopyResult> =
        serde_json::from_slice(&answer).map_err(|error| failed(error.to_string()))?;
    let memory_mib = highest.map(|all: u64| all / u64::from(what.clients.max(1)));
    Ok((throughput(bench, &results).map_err(failed)?, memory_mib))
}

fn throughput(bench: &Bench<'_>, results: &[CopyResult]) -> Result<f64, String> {
    let last_line = |copy: &CopyResult| match copy.last.as_str() {
        "" => "it wrote nothing".to_owned(),
        last => format!("its last line: {last}"),
    };
    if let Some((copy, why)) = results
        .iter()
        .find_map(|copy| Some((copy, copy.failed.as_ref()?)))
    {
        return Err(format!("{why}; {}", last_line(copy)));
    }
    if let Some(metric) = bench.metric {
        let figures = results.iter().map(|copy| {
            let (pattern, last) = (metric.pattern(), last_line(copy));
            copy.metric
                .ok_or_else(|| format!("nothing that it wrote matches '{pattern}'; {last}"))
        });
        return figures.sum();
    }
    let Some(limit) = bench.limit else {
        // Each ran once: the last one's end counts.
        let seconds = results.iter().map(|copy| copy.seconds);
        return Ok(results.len() as f64 / seconds.fold(f64::MIN_POSITIVE, f64::max) * HOUR);
    };
    let rate = |copy: &CopyResult| f64::from(copy.completions) / copy.seconds.max(f64::MIN_POSITIVE);
    match results.iter().map(rate).sum::<f64>() {
        sum if sum > 0.0 => Ok(sum * HOUR),
        _ => Err(format!("none came to its end within {} s", limit.as_secs())),
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
        let gpus = gpus.iter().map(|gpu| GpuUuid::parse(gpu).ok());
        let gpus: Vec<GpuUuid> = gpus.collect::<Option<_>>()?;
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
