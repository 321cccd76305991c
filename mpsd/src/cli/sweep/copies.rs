//! Runs copies of the user's command at once, in the process that ends with all of them.

use super::metric::{Metric, Scan};
use crate::sys::Exit;
use crate::sys::family;
use crate::sys::signals::{Signals, start_fresh};
use mpsd_core::environment::Change;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{PipeReader, PipeWriter, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Most that is read of one copy before the next one's turn, bytes.
const PORTION: usize = 65_536;
const TURN: Duration = Duration::from_millis(500);

/// What all measurements share.
#[derive(Debug, Clone, Copy)]
pub struct Bench<'a> {
    pub command: &'a [OsString],
    /// The figure that a copy writes; without it, completions are counted.
    pub metric: Option<&'a Metric>,
    /// When all copies are ended; `None`: they end by themselves.
    pub limit: Option<Duration>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CopyResult {
    /// How often it ended with exit code 0.
    pub completions: u32,
    /// Seconds from the start of all to its last completion.
    pub seconds: f64,
    pub metric: Option<f64>,
    pub failed: Option<String>,
    pub last: String,
}

struct Slot<'a> {
    bench: &'a Bench<'a>,
    environment: &'a [Change],
    pid: Option<i32>,
    reader: PipeReader,
    writer: PipeWriter,
    scan: Scan,
    result: CopyResult,
}

/// Runs a copy in each of `environments` until all have ended, one has failed, the time is up, or `end` can be read. Then
/// it ends all processes that the copies have started.
pub fn run(bench: &Bench<'_>, environments: &[Vec<Change>], end: BorrowedFd<'_>) -> Vec<CopyResult> {
    let prepare = || -> std::io::Result<_> {
        let slots = environments.iter().map(|one| Slot::new(bench, one));
        Ok((
            Signals::block(&[Signal::SIGCHLD])?,
            slots.collect::<std::io::Result<Vec<_>>>()?,
        ))
    };
    let (signals, mut slots) = match prepare() {
        Ok(prepared) => prepared,
        Err(error) => {
            let failed = Some(format!("no signals or no pipe to be had: {error}"));
            return vec![CopyResult {
                failed,
                ..CopyResult::default()
            }];
        }
    };
    let begin = Instant::now();
    slots.iter_mut().for_each(Slot::start);
    while !is_over(bench, &slots, begin) && !can_be_read(end, &signals, &slots, next_turn(bench, begin)) {
        while let Ok(Some(_)) = signals.read() {}
        for (pid, exit) in family::reap_ended() {
            if let Some(slot) = slots.iter_mut().find(|slot| slot.pid == Some(pid)) {
                slot.end(exit, begin);
            }
        }
        for slot in &mut slots {
            slot.read();
        }
    }
    drop(signals);
    // Nothing may write any more when the rest of the output is read.
    family::end_descendants();
    slots.into_iter().map(Slot::finish).collect()
}

fn is_over(bench: &Bench<'_>, slots: &[Slot<'_>], begin: Instant) -> bool {
    bench.limit.is_some_and(|limit| begin.elapsed() >= limit)
        || slots.iter().all(|slot| slot.pid.is_none())
        || slots.iter().any(|slot| slot.result.failed.is_some())
}

fn next_turn(bench: &Bench<'_>, begin: Instant) -> Duration {
    let left = bench.limit.map(|limit| limit.saturating_sub(begin.elapsed()));
    left.map_or(TURN, |left| left.min(TURN))
}

fn can_be_read(end: BorrowedFd<'_>, signals: &Signals, slots: &[Slot<'_>], turn: Duration) -> bool {
    let pipes = slots.iter().map(|slot| slot.reader.as_fd());
    let all = [end, signals.as_fd()].into_iter().chain(pipes);
    let mut all: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    let turn = PollTimeout::try_from(turn + Duration::from_millis(1)).unwrap_or(PollTimeout::ZERO);
    let _ = poll(&mut all, turn);
    all.first().and_then(PollFd::any) == Some(true)
}

impl<'a> Slot<'a> {
    fn new(bench: &'a Bench<'a>, environment: &'a [Change]) -> std::io::Result<Self> {
        let (reader, writer) = std::io::pipe()?;
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self {
            bench,
            environment,
            pid: None,
            reader,
            writer,
            scan: Scan::default(),
            result: CopyResult::default(),
        })
    }

    fn start(&mut self) {
        match self.spawn() {
            Ok(pid) => self.pid = Some(pid),
            Err(error) => {
                let program = self.bench.command.first().map(|word| word.to_string_lossy());
                self.result.failed = Some(format!("cannot run '{}': {error}", program.unwrap_or_default()));
            }
        }
    }

    /// In a process group of its own, so that a script that ends its group ends nothing else. The command is searched in
    /// the user's own `PATH`.
    fn spawn(&self) -> std::io::Result<i32> {
        let words = self.bench.command.split_first();
        let (program, arguments) = words.ok_or(std::io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(self.writer.try_clone()?)
            .stderr(self.writer.try_clone()?)
            .process_group(0);
        for change in self.environment {
            match &change.value {
                Some(value) => command.env(change.name, value),
                None => command.env_remove(change.name),
            };
        }
        start_fresh(&mut command);
        // Reaped with the orphans.
        command.spawn().map(|child| child.id().cast_signed())
    }

    fn end(&mut self, exit: Exit, begin: Instant) {
        self.pid = None;
        if exit != Exit::Code(0) {
            self.result.failed = Some(format!("it ended by {exit}"));
            return;
        }
        self.result.completions += 1;
        self.result.seconds = begin.elapsed().as_secs_f64();
        if self.bench.metric.is_none() && self.bench.limit.is_some_and(|limit| begin.elapsed() < limit) {
            self.start();
        }
    }

    /// Reads what there is, up to [`PORTION`]; false: there is nothing now.
    fn read(&mut self) -> bool {
        let mut bytes = [0; PORTION];
        let got = self.reader.read(&mut bytes).unwrap_or(0);
        self.scan.feed(&bytes[..got], self.bench.metric);
        got > 0
    }

    /// Reads the rest, which the pipe holds.
    fn finish(mut self) -> CopyResult {
        while self.read() {}
        self.scan.end_line(self.bench.metric);
        CopyResult {
            metric: self.scan.found,
            last: self.scan.last(),
            ..self.result
        }
    }
}
