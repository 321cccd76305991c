//! One configuration, measured once.

use super::configuration::{Configuration, Way};
use super::copies::{self, CopyOrder, CopyResult};
use super::memory::Memory;
use super::metric::Metric;
use super::places::Places;
use crate::sys::family::Family;
use crate::sys::signals::Signals;
use indicatif::ProgressBar;
use mpsd_core::listener;
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::time::{Duration, Instant};

/// How often the bar moves.
const TURN: Duration = Duration::from_millis(200);
/// How often memory is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Seconds of an hour.
const HOUR: f64 = 3600.0;

/// What is the same for every configuration.
#[derive(Debug)]
pub struct Bench<'a> {
    /// The user's command.
    pub command: &'a [OsString],
    /// Where copies run.
    pub places: &'a Places,
    /// `--metric`.
    pub metric: Option<&'a Metric>,
    /// `--seconds`.
    pub limit: Option<Duration>,
    /// The signals that end the sweep.
    pub signals: &'a Signals,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// All clients together: completions an hour, or the sum of what they wrote.
    pub throughput: f64,
    /// Each client, at its highest. MiB.
    pub memory_mib: Option<u64>,
}

/// Why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unmeasured {
    /// The sweep is to end.
    Told(Signal),
    /// This configuration has no figure.
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
    ) -> Result<Measured, Unmeasured> {
        let failed = |why: String| Unmeasured::Failed(why);
        let environments = self
            .places
            .environments(what.clients, what.way)
            .map_err(|refusal| failed(refusal.to_string()))?;
        if matches!(what.way, Way::Mps(_)) {
            // Without it the copies would run outside MPS, and be measured as if under it.
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
        let work = |end: std::os::fd::BorrowedFd<'_>| {
            serde_json::to_vec(&copies::run(&order, end)).unwrap_or_default()
        };
        let mut family =
            Family::start(work).map_err(|errno| failed(format!("no process to be had: {errno}")))?;
        let begin = Instant::now();
        let (mut highest, mut looked) = (None, begin);
        let answer = loop {
            bar.set_message(format!("{what}, {} s", begin.elapsed().as_secs()));
            if let Some(signal) = self.signals.read().ok().flatten() {
                return Err(Unmeasured::Told(signal));
            }
            if looked.elapsed() >= LOOK {
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
            // Each ran once: they are done when the last one is.
            (None, None) => Ok(together()),
            (None, Some(_)) if sum > 0.0 => Ok(sum * HOUR),
            (None, Some(limit)) => Err(format!("none came to its end within {} s", limit.as_secs())),
        }
    }
}
