//! Starts the control daemons of a job and proves them ready.

use super::dialogue::{self, Proof};
use super::events::Events;
use super::session;
use super::tail::Tail;
use crate::job::spec::{ReadyDaemon, Spec};
use crate::sys::deadline::Deadline;
use crate::sys::spawn::Child;
use mpsd_core::record::Daemon;
use mpsd_core::text::one_line;
use nix::sys::signal::Signal;
use std::fs::File;
use std::time::Duration;

/// Between the socket's appearance and its answering lie a few milliseconds and no event.
const RETRY: Duration = Duration::from_millis(1);
/// A daemon that is not wanted gets this long to end by itself.
const GRACE: Duration = Duration::from_millis(500);

/// A control daemon that we started.
#[derive(Debug)]
pub struct Running {
    /// What it was to be.
    pub daemon: Daemon,
    /// The process.
    pub child: Child,
    /// Its log.
    pub tail: Tail,
    /// Its limits are set and read back, and its server is asked for.
    asked: bool,
    /// Its server, once that is active and confirms the limits.
    server: Option<i32>,
    proof: Proof,
}

impl Running {
    /// The two pids for the report.
    pub fn ready(&self) -> ReadyDaemon {
        ReadyDaemon {
            control: self.child.pid(),
            server: self.server.unwrap_or(0),
        }
    }
}

/// Starts every daemon of `spec` and returns when each has proved its limits. A failure goes to `tell` at once: a daemon
/// that does not end when told to would keep it back past the time for which root listens.
///
/// # Errors
/// The first failure, one line, after all daemons were ended again.
pub fn all(spec: &Spec, events: &mut Events, tell: impl FnOnce(&str)) -> Result<Vec<Running>, String> {
    let mut running = Vec::new();
    let Err(reason) = bring_up(spec, events, &mut running) else {
        return Ok(running);
    };
    let tail = running.iter_mut().flat_map(|r| {
        r.tail.lines();
        r.tail.last()
    });
    let reason = with_cause(reason, &tail.collect::<Vec<_>>());
    tell(&reason);
    running.iter_mut().for_each(end);
    Err(reason)
}

fn with_cause(reason: String, tail: &[String]) -> String {
    let cause = tail
        .iter()
        .rev()
        .find(|l| l.contains("Failed") || l.contains("rror") || l.contains("fatal"));
    match cause.and_then(|line| line.split_once("] ")) {
        Some((_, message)) => format!("{reason} (its log: {})", one_line(message, 120)),
        None => reason,
    }
}

fn bring_up(spec: &Spec, events: &mut Events, running: &mut Vec<Running>) -> Result<(), String> {
    let end = Deadline::after_ms(spec.start_ms);
    for daemon in &spec.daemons {
        running.push(spawn(spec, daemon, events)?);
    }
    loop {
        let mut again = false;
        for daemon in running.iter_mut() {
            again |= advance(spec, daemon, end)?;
        }
        if running.iter().all(|r| r.server.is_some()) {
            return Ok(());
        }
        let left = end.remaining();
        if left.is_zero() {
            return Err(format!(
                "not ready after {} ms: {}",
                spec.start_ms,
                stuck(running)
            ));
        }
        if events.wait(Some(if again { RETRY } else { left }))? {
            return Err("ended by a signal while starting".to_owned());
        }
    }
}

fn stuck(running: &[Running]) -> &'static str {
    match running.iter().find(|r| r.server.is_none()) {
        Some(daemon) if !daemon.asked => "the control daemon's socket does not answer",
        _ => "the server does not become active",
    }
}

fn spawn(spec: &Spec, daemon: &Daemon, events: &mut Events) -> Result<Running, String> {
    let (writer, tail) = Tail::create(&daemon.log)
        .map_err(|e| format!("cannot make the log in '{}': {e}", daemon.log.display()))?;
    events.watch_start(&daemon.pipe, &daemon.log)?;
    let child =
        spawn_control(spec, daemon, writer).map_err(|e| format!("the control daemon does not start: {e}"))?;
    Ok(Running {
        daemon: daemon.clone(),
        child,
        tail,
        asked: false,
        server: None,
        proof: Proof::default(),
    })
}

fn spawn_control(spec: &Spec, daemon: &Daemon, log: File) -> Result<Child, String> {
    let mut program = session::program(&spec.control, daemon);
    program.args = vec!["-f".into()];
    program.stderr = Some(log.try_clone().map_err(|e| e.to_string())?.into());
    program.stdout = Some(log.into());
    program
        .start(Deadline::after_ms(spec.start_ms))
        .map_err(|e| e.to_string())
}

/// Takes a daemon as far as it will go now; true: look again soon, no event will tell.
fn advance(spec: &Spec, running: &mut Running, end: Deadline) -> Result<bool, String> {
    for line in running.tail.lines() {
        running.proof.take(&line);
    }
    if let Some(end) = running.child.try_wait() {
        return Err(format!("the control daemon ended ({end}) before it was ready"));
    }
    match (running.asked, running.server) {
        (false, _) => ask(spec, running, end),
        (true, None) => confirm(running).map(|()| false),
        (true, Some(_)) => Ok(false),
    }
}

fn ask(spec: &Spec, running: &mut Running, end: Deadline) -> Result<bool, String> {
    if std::fs::symlink_metadata(running.daemon.pipe.join("control")).is_err() {
        return Ok(false);
    }
    let commands = dialogue::configure(&running.daemon, spec.uid);
    let limit = spec.command_time().min(end.remaining());
    let answer = session::say(&spec.control, &running.daemon, &commands, limit)?;
    if answer.nobody_listens() {
        return Ok(true);
    }
    dialogue::check(&running.daemon, &answer.text)?;
    running.asked = true;
    Ok(true)
}

/// The log's `NEW SERVER n: Ready` says what `get_server_status` would say by ACTIVE, and costs no session
/// (docs/facts/mps-control.md#when-a-server-is-ready; the contract suite compares the two).
fn confirm(running: &mut Running) -> Result<(), String> {
    let Some(server) = running.proof.ready.filter(|_| running.proof.started) else {
        return Ok(());
    };
    running.proof.confirms(&running.daemon)?;
    running.server = Some(server);
    Ok(())
}

/// Ends a daemon that is not wanted: SIGTERM takes its server along (docs/facts/mps-control.md#crashes-and-hangs), else
/// SIGKILL does.
pub fn end(running: &mut Running) {
    running.child.signal(Signal::SIGTERM);
    if running.child.wait(Deadline::after(GRACE)).is_none() {
        running.child.kill(Deadline::after(GRACE));
    }
}
