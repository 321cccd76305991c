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
/// Longest wait for an event.
const TURN: Duration = Duration::from_millis(500);

/// The order for one measurement.
#[derive(Debug, Clone, Copy)]
pub struct CopyOrder<'a> {
    pub command: &'a [OsString],
    /// The changes in the environment of each copy.
    pub environments: &'a [Vec<Change>],
    /// The figure that a copy writes; without it, completions are counted.
    pub metric: Option<&'a Metric>,
    /// When all copies are ended; `None`: they end by themselves.
    pub limit: Option<Duration>,
}

/// The result of one copy.
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
    order: &'a CopyOrder<'a>,
    environment: &'a [Change],
    pid: Option<i32>,
    reader: PipeReader,
    writer: PipeWriter,
    scan: Scan,
    ended: CopyResult,
}

/// Runs the order until all copies have ended, one has failed, the time is up, or `end` can be read. Then all that the
/// copies have started is ended.
pub fn run(order: &CopyOrder<'_>, end: BorrowedFd<'_>) -> Vec<CopyResult> {
    let (signals, mut slots) = match prepare(order) {
        Ok(prepared) => prepared,
        Err(failed) => {
            let failed = Some(failed);
            return vec![CopyResult {
                failed,
                ..CopyResult::default()
            }];
        }
    };
    let begin = Instant::now();
    for slot in &mut slots {
        slot.start();
    }
    while !is_over(order, &slots, begin) && !is_told(&signals, &slots, end, left(order, begin)) {
        while let Ok(Some(_)) = signals.read() {}
        for (pid, exit) in family::reap_ended() {
            if let Some(slot) = slots.iter_mut().find(|slot| slot.pid == Some(pid)) {
                slot.end(exit, begin);
            }
        }
        slots.iter_mut().for_each(|slot| {
            slot.read();
        });
    }
    drop(signals);
    // Nothing may write any more when the rest of the output is read.
    family::end_descendants();
    slots.into_iter().map(Slot::finish).collect()
}

fn prepare<'a>(order: &'a CopyOrder<'a>) -> Result<(Signals, Vec<Slot<'a>>), String> {
    let signals = Signals::block(&[Signal::SIGCHLD]);
    let signals = signals.map_err(|errno| format!("signals cannot be read: {errno}"))?;
    let slots = order.environments.iter().map(|one| Slot::new(order, one));
    let slots: std::io::Result<Vec<_>> = slots.collect();
    Ok((
        signals,
        slots.map_err(|error| format!("no pipe to be had: {error}"))?,
    ))
}

fn left(order: &CopyOrder<'_>, begin: Instant) -> Duration {
    let limit = order.limit.map(|limit| limit.saturating_sub(begin.elapsed()));
    limit.map_or(TURN, |left| left.min(TURN))
}

fn is_over(order: &CopyOrder<'_>, slots: &[Slot<'_>], begin: Instant) -> bool {
    order.limit.is_some_and(|limit| begin.elapsed() >= limit)
        || slots.iter().all(|slot| slot.pid.is_none())
        || slots.iter().any(|slot| slot.ended.failed.is_some())
}

/// Waits for an event; true: `end` can be read.
fn is_told(signals: &Signals, slots: &[Slot<'_>], end: BorrowedFd<'_>, turn: Duration) -> bool {
    let pipes = slots.iter().map(|slot| slot.reader.as_fd());
    let all = [end, signals.as_fd()].into_iter().chain(pipes);
    let mut all: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    let turn = PollTimeout::try_from(turn + Duration::from_millis(1)).unwrap_or(PollTimeout::ZERO);
    let _ = poll(&mut all, turn);
    all.first().and_then(PollFd::any) == Some(true)
}

impl<'a> Slot<'a> {
    fn new(order: &'a CopyOrder<'a>, environment: &'a [Change]) -> std::io::Result<Self> {
        let (reader, writer) = std::io::pipe()?;
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self {
            order,
            environment,
            pid: None,
            reader,
            writer,
            scan: Scan::default(),
            ended: CopyResult::default(),
        })
    }

    fn start(&mut self) {
        match self.spawn() {
            Ok(pid) => self.pid = Some(pid),
            Err(error) => {
                let program = self.order.command.first().map(|word| word.to_string_lossy());
                self.ended.failed = Some(format!("cannot run '{}': {error}", program.unwrap_or_default()));
            }
        }
    }

    /// In a process group of its own, so that a script that ends its group ends nothing else. The command is searched in
    /// the user's own `PATH`.
    fn spawn(&self) -> std::io::Result<i32> {
        let (program, arguments) = self
            .order
            .command
            .split_first()
            .ok_or(std::io::ErrorKind::InvalidInput)?;
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
            self.ended.failed = Some(format!("it ended by {exit}"));
            return;
        }
        self.ended.completions += 1;
        self.ended.seconds = begin.elapsed().as_secs_f64();
        if self.order.metric.is_none() && self.order.limit.is_some_and(|limit| begin.elapsed() < limit) {
            self.start();
        }
    }

    /// Reads what there is, up to [`PORTION`]; false: there is nothing now.
    fn read(&mut self) -> bool {
        let mut bytes = [0; PORTION];
        let got = self.reader.read(&mut bytes).unwrap_or(0);
        self.scan.feed(&bytes[..got], self.order.metric);
        got > 0
    }

    /// Reads the rest, which the pipe holds.
    fn finish(mut self) -> CopyResult {
        while self.read() {}
        self.scan.end_line(self.order.metric);
        CopyResult {
            metric: self.scan.found,
            last: self.scan.last(),
            ..self.ended
        }
    }
}
