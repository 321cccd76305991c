//! The commands as they run: which starts when and on which GPU, and what becomes of those that
//! end.

use super::commands::Line;
use super::cores::BusyCores;
use super::growth::{Bounds, Growth, Sight};
use super::joblog::{self, JobLog};
use crate::engine::{self, End, Running, Task};
use crate::gpus::{self, Gpus};
use crate::places::Places;
use crate::progress::Progress;
use crate::regular::regular;
use crate::setting::{Setting, lost};
use crate::share::Share;
use anyhow::{Context as _, Result, anyhow};
use batch::{Host as _, ThisHost};
use ctl::{Caller, NAME, complain};
use mpsd::cli::troubles::TROUBLES;
use mpsd_core::environment::Change;
use mpsd_core::gpu::MOST_CLIENTS;
use mpsd_core::limits::{Amount, Invalid};
use mpsd_core::listener;
use mpsd_core::text::{count, list, one_line};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const TURN: Duration = Duration::from_millis(500);
/// Part of a failed command's output that is searched, bytes.
const SEARCHED: u64 = 64 << 10;
/// What programs write that found no memory on a GPU, in small letters, beside the words for CUDA's
/// error 2 that 'mpsctl explain' knows. The last is OpenMM's.
const NO_MEMORY: [&str; 3] = [
    "out of memory",
    "out_of_memory",
    "no compatible cuda device is available",
];
const OUT_OF_MEMORY: u32 = 2;
/// The command's number, as GNU parallel tells it.
const SEQ: &str = "PARALLEL_SEQ";
/// Failed commands that the summary names.
const NAMED: usize = 20;

/// A number, or what finds it.
#[derive(Debug, Clone, Copy)]
struct AtOnce(Option<u32>);

fn at_once(text: &str) -> Result<AtOnce, Invalid> {
    match text.parse() {
        Ok(number @ 1..=4096) => Ok(AtOnce(Some(number))),
        _ if text == "auto" => Ok(AtOnce(None)),
        _ => {
            let allowed = "auto, or a number from 1 to 4096";
            Err(Invalid::new("no such number of commands", allowed))
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Memory {
    None,
    Auto,
    Of(Amount),
}

fn memory(text: &str) -> Result<Memory, Invalid> {
    match text {
        "none" => Ok(Memory::None),
        "auto" => Ok(Memory::Auto),
        other => other.parse().map(Memory::Of),
    }
}

/// How many commands run at once, and what each may take.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Limits {
    /// Commands at once, on all of the job's GPUs of this node together. auto: begins with 8 on
    /// each GPU, and runs more while the GPUs draw more power for it, and memory, cores and MPS
    /// clients allow
    #[arg(short = 'n', long, value_name = "N|auto", default_value = "auto", value_parser = at_once)]
    at_once: AtOnce,
    /// Thread percentage of each command: none, auto (200/n), 100/n, a number; n: commands on its
    /// GPU when it starts
    #[arg(long, value_name = "P", default_value = "none")]
    threads: Share,
    /// Memory limit of each command: none, auto (the GPU's divided by the commands on it when it
    /// starts), 4G, 25%
    #[arg(long = "mem", value_name = "M", default_value = "none", value_parser = memory)]
    memory: Memory,
    /// Run a command that fails up to N times in all
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    retries: u32,
    /// End a command that takes longer, with all that it started
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
}

fn seconds(text: &str) -> Result<Duration, Invalid> {
    let span = text.parse().ok();
    let span = span.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let span = span.filter(|span| !span.is_zero() && *span < Duration::from_secs(1 << 31));
    span.ok_or_else(|| Invalid::new("not a number of seconds", "a number above 0"))
}

#[derive(Debug)]
struct Try {
    line: Line,
    /// Times that it has failed.
    failed: u32,
    /// With no other on its GPU.
    alone: bool,
}

#[derive(Debug)]
struct Run {
    of: Try,
    running: Running,
    gpu: u32,
    /// Another has run beside it.
    shared: bool,
    /// It was started because more may run.
    fills: bool,
    output: PathBuf,
    /// Where its part of the output begins.
    from: u64,
}

#[derive(Debug)]
pub struct Runner<'a> {
    limits: Limits,
    places: Places,
    setting: &'a Setting,
    gpus: Option<Gpus>,
    growth: Option<Growth>,
    shell: OsString,
    host: String,
    directory: &'a Path,
    log: JobLog,
    waiting: VecDeque<Try>,
    /// They need a GPU without other commands.
    alone: VecDeque<Try>,
    running: Vec<Run>,
    pub asked: u64,
    good: u64,
    pub failed: Vec<u64>,
    again_alone: Vec<u64>,
    memory_mib: Option<u64>,
    most: usize,
    begin: Instant,
    busy: BusyCores,
    progress: Progress,
}

impl<'a> Runner<'a> {
    pub fn new(
        limits: Limits,
        places: Places,
        setting: &'a Setting,
        caller: &Caller<'_>,
        lines: VecDeque<Line>,
        directory: &'a Path,
        log: JobLog,
    ) -> Self {
        let gpus = Gpus::of(&places.gpus, &setting.daemon, &caller.settings().0.nvml);
        let shell = (caller.env)("SHELL").filter(|shell| Path::new(shell).is_absolute());
        let asked = lines.len() as u64;
        let waiting = lines.into_iter().map(|line| Try {
            line,
            failed: 0,
            alone: false,
        });
        let mut runner = Self {
            limits,
            setting,
            gpus,
            growth: None,
            shell: shell.map_or_else(|| "/bin/sh".into(), OsString::from),
            host: ThisHost.name(),
            directory,
            log,
            waiting: waiting.collect(),
            alone: VecDeque::new(),
            running: Vec::new(),
            asked,
            good: 0,
            failed: Vec::new(),
            again_alone: Vec::new(),
            memory_mib: None,
            most: 0,
            begin: Instant::now(),
            busy: BusyCores::default(),
            progress: Progress::new(asked),
            places,
        };
        if limits.at_once.0.is_none() && runner.places.has_mps() {
            runner.growth = Some(runner.growth());
        }
        runner
    }

    fn growth(&mut self) -> Growth {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let memory_mib = self.gpu_memory_mib();
        let fits = match self.limits.memory {
            Memory::Of(amount) => memory_mib.zip(amount.mebibytes_of(memory_mib)),
            Memory::None | Memory::Auto => None,
        };
        let fits = fits.map(|(all, one)| u32::try_from(all / one.max(1)).unwrap_or(u32::MAX));
        let clients = self.places.most_clients().unwrap_or(MOST_CLIENTS);
        let bounds = Bounds {
            gpus: self.places.count(),
            memory_mib,
            most: clients.min(fits.unwrap_or(u32::MAX).max(1)),
            cores: u32::try_from(cores).unwrap_or(u32::MAX),
        };
        let idle = self.gpus.as_mut().and_then(Gpus::watts);
        if idle.is_none() {
            let why = "NVML does not tell what the GPUs draw";
            complain(NAME, &format!("pack: {why}: -n auto stays as it begins"));
        }
        Growth::new(bounds, idle.unwrap_or(0.0))
    }

    fn gpu_memory_mib(&self) -> Option<u64> {
        self.gpus.as_ref()?.total_mib
    }

    /// Commands at once, on all GPUs.
    fn at_once(&self) -> usize {
        let number = match (self.limits.at_once.0, &self.growth) {
            (Some(number), _) => number,
            (None, Some(growth)) => growth.each() * self.places.count(),
            // They would take turns.
            (None, None) => self.places.count(),
        };
        number as usize
    }

    /// Runs all; the signal that ended it early.
    pub fn run(&mut self) -> Result<Option<Signal>> {
        if self.limits.at_once.0.is_none() && !self.places.has_mps() {
            let line = "pack: this job has no MPS, and commands on a GPU would take turns: one at a time on each (submit it with --mps)";
            self.progress.tell(line);
        }
        let mut looked: Option<Instant> = None;
        loop {
            self.start_more()?;
            if self.running.is_empty() {
                return Ok(None);
            }
            if let Some(signal) = self.setting.signal() {
                self.end_all();
                return Ok(Some(signal));
            }
            if looked.is_none_or(|looked| looked.elapsed() >= TURN) {
                looked = Some(Instant::now());
                self.look();
            }
            let ends = self.running.iter().filter_map(|run| run.running.source());
            engine::wait([self.setting.signals.as_fd()].into_iter().chain(ends), TURN);
            self.take_ended()?;
            let failed = self.failed.len() as u64;
            let (ended, running) = (self.good + failed, self.running.len());
            self.progress.show(ended, failed, running);
        }
    }

    fn end_all(&mut self) {
        self.running.iter_mut().for_each(|run| run.running.let_go());
        // Each is waited for; what succeeds meanwhile is in the log.
        let mut all = std::mem::take(&mut self.running);
        let deadline = Instant::now() + Duration::from_secs(8);
        while !all.is_empty() && Instant::now() < deadline {
            let first = all.iter().find_map(|run| run.running.source());
            engine::wait(first, TURN);
            all.retain_mut(|run| match run.running.try_end() {
                None => true,
                Some(ended) => {
                    self.good += u64::from(ended.is_ok_and(|end| end.is_good()));
                    false
                }
            });
        }
    }

    fn start_more(&mut self) -> Result<()> {
        while self.running.len() < self.at_once()
            && let Some(gpu) = self.freest(|of_gpu| of_gpu.iter().all(|run| !run.of.alone))
            && let Some(next) = self.waiting.pop_front()
        {
            self.start(next, gpu)?;
        }
        while !self.alone.is_empty()
            && let Some(gpu) = self.freest(|of_gpu| of_gpu.is_empty())
            && let Some(next) = self.alone.pop_front()
        {
            self.start(next, gpu)?;
        }
        self.most = self.most.max(self.running.len());
        Ok(())
    }

    /// The GPU with the fewest commands of those that `may`.
    fn freest(&self, may: impl Fn(&[&Run]) -> bool) -> Option<u32> {
        let all = (0..self.places.count()).map(|gpu| {
            let runs = self.running.iter().filter(|run| run.gpu == gpu);
            (gpu, runs.collect::<Vec<_>>())
        });
        let may = all.filter(|(_, runs)| may(runs));
        may.min_by_key(|(_, runs)| runs.len()).map(|(gpu, _)| gpu)
    }

    fn start(&mut self, next: Try, gpu: u32) -> Result<()> {
        let output = self.directory.join(format!("{}.out", next.line.seq));
        let cannot = || format!("pack: cannot write '{}'", output.display());
        let file = open(&output, next.failed).with_context(cannot)?;
        let from = file.metadata().with_context(cannot)?.len();
        let task = Task {
            words: vec![self.shell.clone(), "-c".into(), next.line.text.clone()],
            changes: self.environment(&next, gpu)?,
            output: file.into(),
            limit: self.limits.timeout,
        };
        let (log, host, line) = (&self.log, &self.host, &next.line);
        let done = |end: &End| {
            if end.is_good() {
                let bytes = length(&output, from);
                let _ = log.write(&joblog::line(line.seq, host, end, bytes, &line.text));
            }
        };
        let running = Running::start(&task, &[self.log.as_fd()], done);
        let running = running.context("pack: no process to be had")?;
        let mut shared = false;
        for other in self.running.iter_mut().filter(|run| run.gpu == gpu) {
            (shared, other.shared) = (true, true);
        }
        self.running.push(Run {
            of: next,
            running,
            gpu,
            shared,
            fills: self.growth.as_ref().is_some_and(Growth::is_filling),
            output,
            from,
        });
        Ok(())
    }

    fn environment(&self, next: &Try, gpu: u32) -> Result<Vec<Change>> {
        let left = self.running.len() + self.waiting.len() + 1;
        let at_once = left.min(if next.alone { 1 } else { self.at_once() });
        let at_once = u32::try_from(at_once).unwrap_or(u32::MAX);
        let beside = self.places.on_a_gpu(at_once).max(1);
        let memory_mib = match self.limits.memory {
            Memory::None => None,
            Memory::Auto => self.gpu_memory_mib().map(|all| all / u64::from(beside)),
            Memory::Of(amount) => amount.mebibytes_of(self.gpu_memory_mib()),
        };
        let threads = self.limits.threads.of(beside);
        let mut changes = self.places.under(gpu, threads, memory_mib)?;
        if self.places.has_mps() {
            // Without a daemon it would run outside MPS.
            listener::expect(&changes)?;
        }
        changes.push(Change::set(SEQ, next.line.seq.to_string()));
        Ok(changes)
    }

    fn take_ended(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.running.len() {
            match self.running[at].running.try_end() {
                None => at += 1,
                Some(ended) => {
                    let run = self.running.swap_remove(at);
                    let end = ended.map_err(|exit| {
                        self.running.iter_mut().for_each(|run| run.running.let_go());
                        let (seq, why) = (run.of.line.seq, lost(exit));
                        anyhow!("pack: command {seq}: {why}; --resume goes on")
                    })?;
                    self.judge(run, &end)?;
                }
            }
        }
        Ok(())
    }

    fn judge(&mut self, run: Run, end: &End) -> Result<()> {
        let Run {
            mut of,
            output,
            from,
            ..
        } = run;
        let seq = of.line.seq;
        if end.is_good() {
            self.good += 1;
            return Ok(());
        }
        of.failed += 1;
        if run.shared && !of.alone && !end.late && has_no_memory(&output, from) {
            let why = "a GPU had no memory left for it; it runs again alone";
            self.progress.tell(&format!("pack: command {seq}: {why}"));
            self.again_alone.push(seq);
            if let Some(growth) = &mut self.growth {
                growth.shrink();
            }
            of.alone = true;
            self.alone.push_back(of);
            return Ok(());
        }
        if of.failed < self.limits.retries {
            match of.alone {
                true => self.alone.push_back(of),
                false => self.waiting.push_back(of),
            }
            return Ok(());
        }
        let (why, shown) = (end.text(), one_line(&of.line.text.to_string_lossy(), 60));
        self.progress
            .tell(&format!("pack: command {seq} failed: {why}: {shown}"));
        self.failed.push(seq);
        let bytes = length(&output, from);
        let line = joblog::line(seq, &self.host, end, bytes, &of.line.text);
        self.log
            .write(&line)
            .context("pack: the job log cannot be written")
    }

    fn look(&mut self) {
        let Some(lists) = self.gpus.as_mut().and_then(Gpus::processes) else {
            return;
        };
        let processes = engine::processes(self.running.iter().map(|run| &run.running));
        let mut up = true;
        for (run, pids) in self.running.iter().zip(&processes) {
            let list = lists.get(run.gpu as usize).map_or(&[][..], Vec::as_slice);
            up &= !run.fills || list.iter().any(|process| pids.contains(&process.pid));
            self.memory_mib = self.memory_mib.max(gpus::memory_mib(list, pids));
        }
        let busy = self.busy.now(&processes.concat());
        let full = self.running.len() >= self.at_once();
        let now = self.begin.elapsed().as_secs_f64();
        let ended = (self.good + self.failed.len() as u64) as f64;
        // Those that run are half done.
        let done = ended + self.running.len() as f64 / 2.0;
        let left = (ended > 0.0).then(|| self.waiting.len() as f64 * now / done);
        if let Some(growth) = &mut self.growth {
            growth.see(&Sight {
                now,
                full,
                up,
                watts: self.gpus.as_mut().and_then(Gpus::watts),
                memory_mib: self.memory_mib,
                busy,
                left,
            });
        }
    }

    pub fn finish(&mut self) {
        self.progress.finish();
        self.failed.sort_unstable();
    }

    fn not_run(&self) -> u64 {
        self.asked - self.good - self.failed.len() as u64
    }

    pub fn json(&self, already: u64, log: &Path) -> Value {
        json!({
            "commands": already + self.asked,
            "already_done": already,
            "succeeded": self.good,
            "failed": self.failed,
            "not_run": self.not_run(),
            "again_alone": self.again_alone,
            "seconds": (self.begin.elapsed().as_secs_f64() * 1000.0).round() / 1000.0,
            "most_at_once": self.most,
            "at_once": self.at_once(),
            "gpus": self.places.count(),
            "mps": self.places.has_mps(),
            "memory_mib": self.memory_mib,
            "results": self.directory.display().to_string(),
            "joblog": log.display().to_string(),
        })
    }

    pub fn text(&self, already: u64, log: &Path) -> String {
        let mut out = format!("{}: {} succeeded", count(self.asked, "command"), self.good);
        if !self.failed.is_empty() {
            let named = list(self.failed.iter().take(NAMED));
            let all = self.failed.len();
            let more = if all > NAMED { ", ..." } else { "" };
            let _ = write!(out, ", {all} failed ({named}{more})");
        }
        if self.not_run() > 0 {
            let _ = write!(out, ", {} did not come to an end", self.not_run());
        }
        if already > 0 {
            let _ = write!(out, "; {already} left out by the job log");
        }
        let (seconds, most) = (self.begin.elapsed().as_secs_f64(), self.most);
        let gpus = count(self.places.count().into(), "GPU");
        let _ = write!(out, "\n{seconds:.1} s, up to {most} at once on {gpus}");
        let bound = self.growth.as_ref().and_then(Growth::bound);
        if let Some(why) = bound.filter(|_| (most as u64) < self.asked) {
            let _ = write!(out, " ({why})");
        }
        if let Some(mib) = self.memory_mib {
            let _ = write!(out, ", up to {mib} MiB each");
        }
        let (directory, log) = (self.directory.display(), log.display());
        out + &format!("\noutput: {directory}/SEQ.out; job log: {log}\n")
    }
}

/// The output's file: new for the first try, and behind the former output for the next.
fn open(path: &Path, failed: u32) -> std::io::Result<File> {
    let mut file = regular(OpenOptions::new().create(true).append(true), path)?;
    match failed {
        0 => file.set_len(0)?,
        _ => writeln!(file, "mpsctl: pack: it failed, and runs again")?,
    }
    Ok(file)
}

/// What a command has written into `output` since `from`, bytes.
fn length(output: &Path, from: u64) -> u64 {
    std::fs::metadata(output).map_or(0, |about| about.len().saturating_sub(from))
}

fn has_no_memory(output: &Path, from: u64) -> bool {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = regular(OpenOptions::new().read(true), output)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(from.max(length.saturating_sub(SEARCHED))))?;
        let mut bytes = Vec::new();
        file.take(SEARCHED).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let text = String::from_utf8_lossy(&read().unwrap_or_default()).to_ascii_lowercase();
    let mut known = TROUBLES
        .iter()
        .filter(|row| row.codes.contains(&OUT_OF_MEMORY));
    NO_MEMORY.iter().any(|words| text.contains(words))
        || known.any(|row| row.words.iter().any(|words| text.contains(words)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_memory_on_its_gpu_is_told_by_its_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("1.out");
        for text in [
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",
            "Error creating array: CUDA_ERROR_OUT_OF_MEMORY (2)",
            "RESOURCE_EXHAUSTED: Out of memory while trying",
            "cudaErrorMemoryAllocation",
            "Kokkos ERROR: Cuda memory space failed to allocate 405.6 MiB",
            "No compatible CUDA device is available",
        ] {
            std::fs::write(&file, text).unwrap();
            assert!(has_no_memory(&file, 0), "{text}");
        }
        std::fs::write(&file, "Segmentation fault").unwrap();
        assert!(!has_no_memory(&file, 0));
        std::fs::write(&file, "out of memory\nsecond try\n").unwrap();
        assert!(!has_no_memory(&file, 14), "an earlier try's");
    }
}
