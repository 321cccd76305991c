//! One configuration, measured once.

use super::configuration::Configuration;
use super::metric::{Metric, Scan};
use crate::engine::{self, Running, Task};
use crate::gpus::Gpus;
use crate::places::Places;
use crate::progress::Progress;
use crate::setting::{Setting, lost};
use mpsd_core::environment::{Change, THREADS};
use mpsd_core::{Refusal, listener};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::io::{PipeReader, PipeWriter, Read as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

/// Most that is read of one copy before the next one's turn, bytes.
const PORTION: usize = 65_536;
const TURN: Duration = Duration::from_millis(200);
const MEMORY_PERIOD: Duration = Duration::from_secs(1);
const HOUR: f64 = 3600.0;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MeasureError {
    Interrupted(Signal),
    Failed(String),
}

impl<E: ToString> From<E> for MeasureError {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Bench<'a> {
    pub command: &'a [OsString],
    /// The figure that a copy writes; without it, completions are counted.
    pub metric: Option<&'a Metric>,
    /// When all copies are ended; `None`: they end by themselves.
    pub limit: Option<Duration>,
}

struct Copy {
    task: Task,
    running: Option<Running>,
    reader: PipeReader,
    scan: Scan,
    /// How often it ended with exit code 0.
    completions: u32,
    /// Seconds from the start of all to its last completion.
    seconds: f64,
    failed: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measured {
    /// All clients' completions an hour, or the sum of their figures or rates.
    pub throughput: f64,
    /// A client's mean at the peak, MiB.
    pub memory_mib: Option<u64>,
    /// The 50th and the 99th percentile of all clients' times.
    pub percentiles: Option<[f64; 2]>,
}

pub fn measure(
    bench: &Bench<'_>,
    places: &Places,
    what: Configuration,
    setting: &Setting,
    gpus: &mut Option<Gpus>,
    progress: &Progress,
) -> Result<Measured, MeasureError> {
    let environments = (0..what.clients).map(|copy| environment(places, what, copy));
    let environments = environments.collect::<Result<Vec<_>, _>>()?;
    if what.share.is_some() {
        // Without a daemon the copies would run outside MPS, and the figures would be wrong.
        let mut all = environments.iter();
        all.try_for_each(|changes| listener::expect(changes))?;
    }
    let copies = environments
        .into_iter()
        .map(|changes| Copy::new(bench, changes));
    let mut copies = copies.collect::<std::io::Result<Vec<_>>>()?;
    let begin = Instant::now();
    copies.iter_mut().try_for_each(Copy::start)?;
    let (mut highest, mut read_at) = (None, begin);
    while !is_over(bench, &copies, begin) {
        progress.say(format!("{what}, {} s", begin.elapsed().as_secs()));
        if let Some(signal) = setting.signal() {
            copies.iter_mut().for_each(Copy::let_go);
            return Err(MeasureError::Interrupted(signal));
        }
        if read_at.elapsed() >= MEMORY_PERIOD {
            read_at = Instant::now();
            let running = copies.iter().filter_map(|copy| copy.running.as_ref());
            let pids = engine::processes(running).concat();
            highest = highest.max(gpus.as_mut().and_then(|gpus| gpus.memory_mib(&pids)));
        }
        let left = bench.limit.unwrap_or(Duration::MAX);
        let turn = left.saturating_sub(begin.elapsed()).min(TURN);
        let sources = copies.iter().flat_map(Copy::sources);
        engine::wait([setting.signals.as_fd()].into_iter().chain(sources), turn);
        for copy in &mut copies {
            copy.read(bench.metric);
            copy.look(bench, begin)?;
        }
    }
    // Nothing may write any more when the rest of the output is read.
    copies.iter_mut().for_each(Copy::let_go);
    copies.iter_mut().for_each(|copy| copy.running = None);
    for copy in &mut copies {
        while copy.read(bench.metric) {}
        copy.scan.end_line(bench.metric);
    }
    let times = copies.iter().flat_map(|copy| &copy.scan.times);
    Ok(Measured {
        throughput: throughput(bench, &copies)?,
        memory_mib: highest.map(|all: u64| all / u64::from(what.clients.max(1))),
        percentiles: percentiles(times.copied()),
    })
}

fn environment(places: &Places, what: Configuration, copy: u32) -> Result<Vec<Change>, Refusal> {
    let Some(share) = what.share else {
        return places.without(copy);
    };
    let percent = share.of(places.on_a_gpu(what.clients));
    let mut changes = places.under(copy, percent, None)?;
    changes.extend(percent.is_none().then(|| Change::unset(THREADS)));
    Ok(changes)
}

fn is_over(bench: &Bench<'_>, copies: &[Copy], begin: Instant) -> bool {
    bench.limit.is_some_and(|limit| begin.elapsed() >= limit)
        || copies.iter().all(|copy| copy.running.is_none())
        || copies.iter().any(|copy| copy.failed.is_some())
}

impl Copy {
    fn new(bench: &Bench<'_>, changes: Vec<Change>) -> std::io::Result<Self> {
        let (reader, writer): (PipeReader, PipeWriter) = std::io::pipe()?;
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self {
            task: Task {
                words: bench.command.to_vec(),
                changes,
                output: writer.into(),
                limit: None,
            },
            running: None,
            reader,
            scan: Scan::default(),
            completions: 0,
            seconds: 0.0,
            failed: None,
        })
    }

    fn start(&mut self) -> Result<(), String> {
        let started = Running::start(&self.task, &[], |_| ());
        self.running = Some(started.map_err(|errno| format!("no process to be had: {errno}"))?);
        Ok(())
    }

    fn sources(&self) -> impl Iterator<Item = std::os::fd::BorrowedFd<'_>> {
        let end = self.running.as_ref().and_then(Running::source);
        [self.reader.as_fd()].into_iter().chain(end)
    }

    /// Takes its end, if it has ended, and starts it again if it is to go on.
    fn look(&mut self, bench: &Bench<'_>, begin: Instant) -> Result<(), String> {
        let Some(ended) = self.running.as_mut().and_then(Running::try_end) else {
            return Ok(());
        };
        self.running = None;
        let end = ended.map_err(lost)?;
        if !end.is_good() {
            let why = || format!("it ended by {}", end.text());
            self.failed = Some(end.not_started.clone().unwrap_or_else(why));
            return Ok(());
        }
        self.completions += 1;
        self.seconds = begin.elapsed().as_secs_f64();
        match bench.metric.is_none() && bench.limit.is_some_and(|limit| begin.elapsed() < limit) {
            true => self.start(),
            false => Ok(()),
        }
    }

    fn let_go(&mut self) {
        self.running.iter_mut().for_each(Running::let_go);
    }

    /// Reads what there is, up to [`PORTION`]; false: there is nothing now.
    fn read(&mut self, metric: Option<&Metric>) -> bool {
        let mut bytes = [0; PORTION];
        let got = self.reader.read(&mut bytes).unwrap_or(0);
        self.scan.feed(&bytes[..got], metric);
        got > 0
    }

    fn last_line(&self) -> String {
        match self.scan.last().as_str() {
            "" => "it wrote nothing".to_owned(),
            last => format!("its last line: {last}"),
        }
    }
}

fn throughput(bench: &Bench<'_>, copies: &[Copy]) -> Result<f64, String> {
    let fails = |copy: &Copy| Some(format!("{}; {}", copy.failed.as_ref()?, copy.last_line()));
    if let Some(why) = copies.iter().find_map(fails) {
        return Err(why);
    }
    if let Some(metric) = bench.metric {
        let figures = copies.iter().map(|copy| {
            let (pattern, last) = (metric.pattern(), copy.last_line());
            let figure = match metric.rate {
                Some((count, _)) => rate(&copy.scan.times).map(|rate| rate * count),
                None => copy.scan.found,
            };
            figure.ok_or_else(|| format!("nothing that it wrote matches '{pattern}'; {last}"))
        });
        return figures.sum();
    }
    let Some(limit) = bench.limit else {
        // Each ran once: the last one's end counts.
        let seconds = copies.iter().map(|copy| copy.seconds);
        return Ok(copies.len() as f64 / seconds.fold(f64::MIN_POSITIVE, f64::max) * HOUR);
    };
    let rate = |copy: &Copy| f64::from(copy.completions) / copy.seconds.max(f64::MIN_POSITIVE);
    match copies.iter().map(rate).sum::<f64>() {
        sum if sum > 0.0 => Ok(sum * HOUR),
        _ => {
            let limit = limit.as_secs();
            let try_this = "give more --seconds, or --metric";
            Err(format!("none came to its end within {limit} s: {try_this}"))
        }
    }
}

/// Requests in a unit of time of a client that makes one after another.
fn rate(times: &[f64]) -> Option<f64> {
    let sum: f64 = times.iter().sum();
    (sum > 0.0).then_some(times.len() as f64 / sum)
}

fn percentiles(times: impl Iterator<Item = f64>) -> Option<[f64; 2]> {
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    let of = |percent: usize| {
        let place = (times.len() * percent).div_ceil(100).checked_sub(1)?;
        times.get(place).copied()
    };
    Some([of(50)?, of(99)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_time_that_was_seen() {
        let seen = |times: std::ops::RangeInclusive<u32>| percentiles(times.map(f64::from));
        assert_eq!(seen(1..=200), Some([100.0, 198.0]));
        assert_eq!(seen(7..=7), Some([7.0, 7.0]));
        assert_eq!(percentiles(std::iter::empty()), None);
        assert_eq!(rate(&[2.0, 4.0]), Some(1.0 / 3.0));
        assert_eq!((rate(&[]), rate(&[0.0])), (None, None));
    }
}
