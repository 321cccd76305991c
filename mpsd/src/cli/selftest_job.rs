//! Runs the scheduler's commands as the user would type them. Each has a deadline, and ends with the selftest.

use crate::scheduler::trial::{CommandLine, Trial, TrialJob};
use crate::sys::Exit;
use crate::sys::deadline::Deadline;
use crate::sys::signals::Signals;
use crate::sys::spawn::{KillReason, RunError, Spawn};
use mpsd_core::text::one_line;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::Signal;
use nix::unistd::{AccessFlags, access};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest time for a command that does not wait for the job.
const COMMAND_TIME: Duration = Duration::from_secs(30);
/// Time between two questions for a job whose submission does not wait.
const TURN: Duration = Duration::from_secs(1);
/// Longest answer that is read, bytes.
const MOST: usize = 1 << 20;
/// Longest answer in a message, characters.
const SHOWN: usize = 400;

/// Why a job was not run to its end.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum Stop {
    /// The scheduler or its command failed.
    #[display("{_0}")]
    Failed(String),
    /// It had not ended in time, and was cancelled.
    #[display("{_0}")]
    Late(String),
    /// The user ended the selftest, and the job was cancelled.
    #[display("interrupted by {_0}")]
    Interrupted(Signal),
}

/// Runs jobs of one scheduler.
pub struct Runner<'a> {
    pub trial: &'static Trial,
    pub signals: &'a Signals,
    /// Longest time from the job's submission to its end.
    pub limit: Duration,
}

/// A program in the user's own `PATH`.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut all = std::env::split_paths(&path).map(|dir| dir.join(name));
    all.find(|file| file.is_absolute() && file.is_file() && access(file, AccessFlags::X_OK).is_ok())
}

/// Runs a command; its success, standard output and standard error.
fn say(
    typed: &CommandLine,
    stop: Option<&Signals>,
    limit: Duration,
) -> Result<(bool, String, String), RunError> {
    let unknown = || PathBuf::from("/nonexistent").join(typed.program);
    let mut spawn = Spawn::new(find(typed.program).unwrap_or_else(unknown));
    spawn.args = typed.arguments.iter().map(Into::into).collect();
    spawn.env = std::env::vars_os().collect();
    spawn.input(typed.input.as_bytes())?;
    let stop = stop.map(Signals::as_fd);
    let ended = spawn.run_unless(stop, Deadline::after(limit), MOST)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((ended.exit == Exit::Code(0), text(&ended.out), text(&ended.err)))
}

/// The output of `program --version`.
pub fn version(program: &'static str) -> String {
    let answer = say(&CommandLine::new(program, &["--version"]), None, COMMAND_TIME);
    answer.map_or_else(|_| String::new(), |(_, out, err)| out + &err)
}

impl Runner<'_> {
    /// Runs the job to its end; returns the output of `mps-probe`.
    ///
    /// # Errors
    /// The job failed, and nothing of it is left in the queue.
    pub fn run(&self, order: &TrialJob<'_>) -> Result<Value, Stop> {
        let out = self.output(order)?;
        answer(&out)
            .ok_or_else(|| Stop::Failed(format!("mps-probe did not run: {}", one_line(out.trim(), SHOWN))))
    }

    fn output(&self, order: &TrialJob<'_>) -> Result<String, Stop> {
        let typed = (self.trial.submit)(order);
        let deadline = Deadline::after(self.limit);
        let out = self.typed(order, &typed)?;
        let id = out.trim().to_owned();
        if self.trial.ask.is_none() {
            return Ok(out);
        }
        let ended = self.until_over(order, &id, deadline);
        let output = std::fs::read_to_string(order.output);
        // The file is ours; it may not exist.
        let _ = std::fs::remove_file(order.output);
        ended?;
        output.map_err(|error| {
            let file = order.output;
            Stop::Failed(format!(
                "job {id} has ended, and its output did not come to '{file}': {error}"
            ))
        })
    }

    /// Submits. The command ends with the job, or prints its id. If it is ended before, the job is known by its name.
    fn typed(&self, order: &TrialJob<'_>, typed: &CommandLine) -> Result<String, Stop> {
        match say(typed, Some(self.signals), self.limit) {
            Ok((true, out, _)) => Ok(out),
            // A probe that failed says why in its answer.
            Ok((false, out, err)) if answer(&out).is_some() => Ok(out + &err),
            Ok(answer) => Err(Stop::Failed(lines(&answer))),
            Err(RunError::Killed {
                why: KillReason::Late { .. },
                ..
            }) => Err(self.late(order.name, None)),
            Err(RunError::Killed {
                why: KillReason::Interrupted,
                ..
            }) => Err(self.interrupted(order.name, None)),
            Err(error) => {
                self.cancel(order.name, None);
                Err(Stop::Failed(error.to_string()))
            }
        }
    }

    fn until_over(&self, order: &TrialJob<'_>, id: &str, deadline: Deadline) -> Result<(), Stop> {
        while !deadline.expired() {
            let asked = self.trial.ask.map(|ask| say(&ask(id), None, COMMAND_TIME));
            if let Some(Ok((_, out, err))) = asked
                && (self.trial.is_over)(&(out + &err))
            {
                return Ok(());
            }
            let mut one = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
            if poll(&mut one, deadline.within(TURN).poll_timeout()).is_ok_and(|ready| ready > 0) {
                return Err(self.interrupted(order.name, Some(id)));
            }
        }
        Err(self.late(order.name, Some(id)))
    }

    fn late(&self, name: &str, id: Option<&str>) -> Stop {
        let why = match (id, self.trial.named) {
            (None, Some(_)) => format!("'{}' had not answered", self.trial.submits),
            _ => {
                let why = say(&(self.trial.why)(name, id), None, COMMAND_TIME);
                why.map(|answer| lines(&answer)).unwrap_or_default()
            }
        };
        self.cancel(name, id);
        let limit = self.limit.as_secs();
        Stop::Late(format!(
            "it had not ended after {limit} s, and was cancelled: {why}"
        ))
    }

    fn interrupted(&self, name: &str, id: Option<&str>) -> Stop {
        self.cancel(name, id);
        let signal = self.signals.read().ok().flatten();
        Stop::Interrupted(signal.unwrap_or(Signal::SIGTERM))
    }

    fn cancel(&self, name: &str, id: Option<&str>) {
        let named = self.trial.named.filter(|_| id.is_none());
        let ids =
            named.map(|named| say(&named(name), None, COMMAND_TIME).map_or(String::new(), |(_, out, _)| out));
        let ids = ids
            .as_ref()
            .map_or(vec![id], |ids| ids.lines().map(Some).collect());
        for id in ids {
            // If this fails, the job's own time limit ends it.
            let _ = say(&(self.trial.cancel)(name, id), None, COMMAND_TIME);
        }
    }
}

/// Finds the output of `mps-probe --json` in a job's output.
fn answer(out: &str) -> Option<Value> {
    let mut all = out.lines().filter_map(|line| serde_json::from_str(line).ok());
    all.find(|value: &Value| value.get("under_mps").is_some() || value.get("error").is_some())
}

/// A command's output on one line, fit for a terminal.
fn lines((_, out, err): &(bool, String, String)) -> String {
    let both = [err, out].into_iter().flat_map(|said| said.lines());
    let all: Vec<&str> = both.map(str::trim).filter(|line| !line.is_empty()).collect();
    match all.is_empty() {
        true => "the scheduler's command said nothing".to_owned(),
        false => one_line(&all.join("; "), SHOWN),
    }
}

/// The file for the output of this job, in the user's home directory. A node has no other directory of the user's, and
/// its /tmp is not ours.
///
/// # Errors
/// The home directory cannot be used; names what is allowed.
pub fn output(home: Option<String>, job: &str) -> Result<PathBuf, String> {
    let home = home.unwrap_or_default();
    let directory = Path::new(&home);
    let writable = access(directory, AccessFlags::W_OK | AccessFlags::X_OK).is_ok();
    if !directory.is_absolute() || !directory.is_dir() || !writable {
        return Err(format!(
            "HOME is '{home}', where its output cannot go; allowed: HOME=DIR, a directory of yours that the nodes have as well"
        ));
    }
    Ok(directory.join(format!(".{job}")))
}
