//! Runs one command, with a keeper: a process that ends everything the command has started, also if
//! we are killed.

use mpsd_core::environment::Change;
use mpsd_sys::Exit;
use mpsd_sys::family::{self, Family};
use mpsd_sys::signals::{Signals, start_fresh};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[derive(Debug)]
pub struct Task {
    /// The program, searched in the user's own `PATH`, and its arguments.
    pub words: Vec<OsString>,
    pub changes: Vec<Change>,
    pub output: OwnedFd,
    pub limit: Option<Duration>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Its exit code, unless a signal ended it, or it was not started.
    pub code: Option<u8>,
    pub signal: Option<i32>,
    pub not_started: Option<String>,
    pub late: bool,
    /// Seconds since 1970.
    pub began: f64,
    pub seconds: f64,
}

impl End {
    pub fn is_good(&self) -> bool {
        self.code == Some(0) && !self.late
    }

    pub fn text(&self) -> String {
        match (&self.not_started, self.signal) {
            (Some(why), _) => why.clone(),
            _ if self.late => format!("its time limit, after {:.1} s", self.seconds),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => format!("exit code {}", self.code.unwrap_or_default()),
        }
    }
}

#[derive(Debug)]
pub struct Running(Family);

impl Running {
    /// A keeper calls `done` at each end of the command, even if this process was killed. The
    /// keeper has none of our descriptors but `kept`.
    pub fn start(
        task: &Task,
        kept: &[BorrowedFd<'_>],
        done: impl FnOnce(&End),
    ) -> Result<Self, Errno> {
        let kept: Vec<BorrowedFd<'_>> = kept.iter().copied().chain([task.output.as_fd()]).collect();
        let family = Family::start(&kept, |end| {
            let ended = keep(task, end);
            done(&ended);
            serde_json::to_vec(&ended).unwrap_or_default()
        })?;
        Ok(Self(family))
    }

    /// Readable at its end.
    pub fn source(&self) -> Option<BorrowedFd<'_>> {
        self.0.source()
    }

    /// Its end, or that of its keeper.
    pub fn try_end(&mut self) -> Option<Result<End, Exit>> {
        let answer = self.0.try_end()?;
        Some(answer.and_then(|bytes| serde_json::from_slice(&bytes).map_err(|_| Exit::Code(0))))
    }

    /// Ends it without waiting; dropping it waits.
    pub fn let_go(&mut self) {
        self.0.let_go();
    }
}

/// The processes that each of `commands` has started.
pub fn processes<'a>(commands: impl IntoIterator<Item = &'a Running>) -> Vec<Vec<i32>> {
    family::processes(commands.into_iter().map(|command| &command.0))
}

/// The keeper's part: runs `task` until it has ended, its time is up, or `end` can be read.
fn keep(task: &Task, end: BorrowedFd<'_>) -> End {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let begin = Instant::now();
    let mut ended = End {
        began: since.unwrap_or_default().as_secs_f64(),
        ..End::default()
    };
    let started = Signals::block(&[Signal::SIGCHLD]).map_err(std::io::Error::from);
    let started = started.and_then(|signals| Ok((spawn(task)?, signals)));
    let (own, signals) = match started {
        Ok(started) => started,
        Err(error) => {
            let program = task.words.first().map(|word| word.to_string_lossy());
            let program = program.unwrap_or_default();
            ended.not_started = Some(format!("cannot run '{program}': {error}"));
            return ended;
        }
    };
    let of_own = |ends: Vec<(i32, Exit)>| ends.into_iter().find(|(pid, _)| *pid == own);
    let exit = loop {
        while let Ok(Some(_)) = signals.read() {}
        if let Some((_, exit)) = of_own(family::reap_ended()) {
            ended.seconds = begin.elapsed().as_secs_f64();
            break Some(exit);
        }
        let left = task.limit.unwrap_or(Duration::MAX);
        let left = left.saturating_sub(begin.elapsed());
        ended.late = left.is_zero();
        if ended.late || wait([end, signals.as_fd()], left) {
            break None;
        }
    };
    drop(signals);
    let of_rest = of_own(family::end_descendants());
    match exit.or(of_rest.map(|(_, exit)| exit)) {
        Some(Exit::Code(code)) => ended.code = Some(code),
        Some(Exit::Signal(signal)) => ended.signal = Some(signal),
        None => ended.signal = Some(Signal::SIGKILL as i32),
    }
    if exit.is_none() {
        ended.seconds = begin.elapsed().as_secs_f64();
    }
    ended
}

/// Waits until one of `all` can be read, or `turn` has passed; whether the first can be read.
pub fn wait<'a>(all: impl IntoIterator<Item = BorrowedFd<'a>>, turn: Duration) -> bool {
    let all = all.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    let mut all: Vec<_> = all.collect();
    // The caller repeats a wait.
    let turn = turn.min(Duration::from_secs(3600)) + Duration::from_millis(1);
    let timeout = PollTimeout::try_from(turn).unwrap_or(PollTimeout::MAX);
    let _ = poll(&mut all, timeout);
    all.first().and_then(PollFd::any) == Some(true)
}

/// In a process group of its own, so that a script that ends its group ends nothing else.
fn spawn(task: &Task) -> std::io::Result<i32> {
    let words = task.words.split_first();
    let (program, arguments) = words.ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(task.output.try_clone()?)
        .stderr(task.output.try_clone()?)
        .process_group(0);
    for change in &task.changes {
        match &change.value {
            Some(value) => command.env(change.name, value),
            None => command.env_remove(change.name),
        };
    }
    start_fresh(&mut command);
    // Reaped with the orphans.
    command.spawn().map(|child| child.id().cast_signed())
}
