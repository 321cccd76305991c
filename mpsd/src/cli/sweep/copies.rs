//! The keeper's work: copies of the user's command at once, what each wrote, and how it ended.

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

/// Most that is read of one copy before the others' turn. Bytes.
const PORTION: usize = 65_536;
/// Longest wait for something to happen.
const TURN: Duration = Duration::from_millis(500);

/// What is to be run.
#[derive(Debug, Clone, Copy)]
pub struct CopyOrder<'a> {
    /// The command.
    pub command: &'a [OsString],
    /// What changes in the environment of each copy.
    pub environments: &'a [Vec<Change>],
    /// The figure that it writes; without one its ends are counted.
    pub metric: Option<&'a Metric>,
    /// When all are ended; `None`: when they end.
    pub limit: Option<Duration>,
}

/// What became of one copy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CopyResult {
    /// How often it came to a good end.
    pub completions: u32,
    /// From the start of all to the last of them. Seconds.
    pub seconds: f64,
    /// The last figure that it wrote.
    pub metric: Option<f64>,
    /// How it failed.
    pub failed: Option<String>,
    /// Its last line.
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

/// Runs the order; returns when all copies have ended, one has failed, or the time is up, or `end` can be read. Those that run
/// then are ended by the caller.
pub fn run(order: &CopyOrder<'_>, end: BorrowedFd<'_>) -> Vec<CopyResult> {
    let nothing = |failed: String| {
        vec![CopyResult {
            failed: Some(failed),
            ..CopyResult::default()
        }]
    };
    let signals = match Signals::block(&[Signal::SIGCHLD]) {
        Ok(signals) => signals,
        Err(errno) => return nothing(format!("signals cannot be read: {errno}")),
    };
    let slots: std::io::Result<Vec<Slot<'_>>> = order
        .environments
        .iter()
        .map(|environment| Slot::new(order, environment))
        .collect();
    let mut slots = match slots {
        Ok(slots) => slots,
        Err(error) => return nothing(format!("no pipe to be had: {error}")),
    };
    let begin = Instant::now();
    for slot in &mut slots {
        slot.start();
    }
    while !is_over(&slots, begin) && !is_told(&signals, &slots, end, left(order, begin)) {
        while let Ok(Some(_)) = signals.read() {}
        for (pid, exit) in family::reap_ended() {
            if let Some(slot) = slots.iter_mut().find(|slot| slot.pid == Some(pid)) {
                slot.end(exit, begin);
            }
        }
        slots.iter_mut().for_each(Slot::read);
    }
    drop(signals);
    // What is left of them shall not write any more; then all that they wrote is read.
    family::end_descendants();
    slots.into_iter().map(Slot::finish).collect()
}

fn left(order: &CopyOrder<'_>, begin: Instant) -> Duration {
    order
        .limit
        .map_or(TURN, |limit| limit.saturating_sub(begin.elapsed()).min(TURN))
}

fn is_over(slots: &[Slot<'_>], begin: Instant) -> bool {
    let late = slots
        .first()
        .and_then(|slot| slot.order.limit)
        .is_some_and(|limit| begin.elapsed() >= limit);
    late || slots.iter().all(|slot| slot.pid.is_none())
        || slots.iter().any(|slot| slot.ended.failed.is_some())
}

/// Waits until something happens; whether it is the end.
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

    /// In a group of its own, so that a script which ends its group ends nobody else. The command is looked for in the user's
    /// own `PATH`.
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
        // Reaped by its pid, with the orphans.
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

    fn read(&mut self) {
        let mut bytes = [0; PORTION];
        if let Ok(got) = self.reader.read(&mut bytes) {
            self.scan
                .feed(bytes.get(..got).unwrap_or_default(), self.order.metric);
        }
    }

    /// A pipe holds what was not read yet, and no more comes.
    fn finish(mut self) -> CopyResult {
        let mut bytes = [0; PORTION];
        while let Ok(got @ 1..) = self.reader.read(&mut bytes) {
            self.scan
                .feed(bytes.get(..got).unwrap_or_default(), self.order.metric);
        }
        self.scan.end_line(self.order.metric);
        CopyResult {
            metric: self.scan.found,
            last: self.scan.last(),
            ..self.ended
        }
    }
}
