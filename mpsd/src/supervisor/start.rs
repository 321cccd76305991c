//! Starts the control daemons of a job and proves them ready.

use super::dialogue::{self, Proof};
use super::events::{Events, Watches};
use super::logs::Tail;
use super::observer::ClientWatch;
use super::session;
use crate::job::spec::{ReadyDaemon, Spec};
use mpsd_core::record::Daemon;
use mpsd_core::text::one_line;
use mpsd_sys::deadline::Deadline;
use mpsd_sys::spawn::Child;
use nix::sys::signal::Signal;
use std::time::Duration;

/// The socket answers some milliseconds after it appears, without an event.
pub const RETRY: Duration = Duration::from_millis(1);
const GRACE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct Running {
    /// With its limits.
    pub daemon: Daemon,
    pub child: Child,
    pub tail: Tail,
    pub watches: Watches,
    /// Its limits are read back, and it was told to start its server.
    configured: bool,
    /// Once it is ready.
    pub server: Option<i32>,
    proof: Proof,
}

impl Running {
    /// The new lines of its log, which also prove its start.
    pub fn lines(&mut self) -> Vec<String> {
        let lines = self.tail.lines();
        for line in lines.iter().filter(|_| self.server.is_none()) {
            self.proof.take(line);
        }
        lines
    }

    pub fn ready(&self) -> ReadyDaemon {
        ReadyDaemon {
            control: self.child.pid(),
            server: self.server.unwrap_or(0),
        }
    }
}

/// A failure ends all. `tell` comes before that, because root may not wait so long.
pub fn all(
    spec: &Spec,
    events: &mut Events,
    tell: impl FnOnce(&str),
) -> Result<Vec<Running>, String> {
    let mut running = Vec::new();
    let Err(why) = bring_up(spec, events, &mut running) else {
        return Ok(running);
    };
    let why = with_cause(why, &mut running);
    tell(&why);
    running.iter_mut().for_each(end);
    Err(why)
}

fn with_cause(mut why: String, running: &mut [Running]) -> String {
    let words = ["Failed", "rror", "fatal"];
    let is_cause = |line: &&String| words.iter().any(|word| line.contains(word));
    let last = |daemon: &mut Running| {
        daemon.tail.lines();
        daemon.tail.last()
    };
    let lines: Vec<String> = running.iter_mut().flat_map(last).collect();
    let cause = lines.iter().rev().find(is_cause);
    if let Some((_, message)) = cause.and_then(|line| line.split_once("] ")) {
        why += &format!(" (its log: {})", one_line(message, 120));
    }
    why
}

fn bring_up(spec: &Spec, events: &mut Events, running: &mut Vec<Running>) -> Result<(), String> {
    let end = Deadline::after_ms(spec.start_ms);
    for daemon in &spec.daemons {
        running.push(spawn(spec, daemon, events)?);
    }
    loop {
        let mut again = false;
        for daemon in running.iter_mut() {
            again |= advance(spec, daemon, true, end)?;
        }
        if running.iter().all(|r| r.server.is_some()) {
            let sockets = running.iter_mut().map(|daemon| &mut daemon.watches.socket);
            sockets.for_each(|socket| events.forget(socket));
            return Ok(());
        }
        let left = end.remaining();
        if left.is_zero() {
            let why = format!("not ready after {} ms: {}", spec.start_ms, stuck(running));
            return Err(why);
        }
        let limit = if again { RETRY } else { left };
        if events.wait(Some(limit), &ClientWatch::default())? {
            return Err("ended by a signal while starting".to_owned());
        }
    }
}

fn stuck(running: &[Running]) -> &'static str {
    match running.iter().find(|r| r.server.is_none()) {
        Some(daemon) if !daemon.configured => "the control daemon's socket does not answer",
        _ => "the server does not become active",
    }
}

pub fn spawn(spec: &Spec, daemon: &Daemon, events: &mut Events) -> Result<Running, String> {
    let (log, tail) = Tail::create(&daemon.log)
        .map_err(|e| format!("cannot make the log in '{}': {e}", daemon.log.display()))?;
    let watches = events.watch_start(&daemon.pipe, &daemon.log)?;
    let fail = |why: String| format!("the control daemon does not start: {why}");
    let mut program = session::program(&spec.control, daemon);
    program.args = vec!["-f".into()];
    program.stderr = Some(log.try_clone().map_err(|e| fail(e.to_string()))?.into());
    program.stdout = Some(log.into());
    let child = program.start(Deadline::after_ms(spec.start_ms));
    Ok(Running {
        daemon: daemon.clone(),
        child: child.map_err(|e| fail(e.to_string()))?,
        tail,
        watches,
        configured: false,
        server: None,
        proof: Proof::default(),
    })
}

/// True: call again after [`RETRY`]. `listens`: a socket there is this daemon's.
pub fn advance(
    spec: &Spec,
    running: &mut Running,
    listens: bool,
    end: Deadline,
) -> Result<bool, String> {
    running.lines();
    if let Some(end) = running.child.try_wait() {
        running.lines();
        return Err(format!(
            "the control daemon ended ({end}) before it was ready"
        ));
    }
    if !running.configured {
        return Ok(listens && ask(spec, running, end)?);
    }
    // `NEW SERVER n: Ready` means ACTIVE (docs/facts/mps-control.md#when-a-server-is-ready).
    let ready = running.proof.server().filter(|_| running.server.is_none());
    if let Some(server) = ready {
        running.proof.confirms(&running.daemon)?;
        running.server = Some(server);
    }
    Ok(false)
}

fn ask(spec: &Spec, running: &mut Running, end: Deadline) -> Result<bool, String> {
    if std::fs::symlink_metadata(running.daemon.pipe.join("control")).is_err() {
        return Ok(false);
    }
    let limit = spec.command_time().min(end.remaining());
    let commands = dialogue::configure(&running.daemon, spec.uid);
    let answer = session::say(&spec.control, &running.daemon, &commands, limit)?;
    if answer.nobody_listens() {
        return Ok(true);
    }
    dialogue::check(&running.daemon, &answer.text)?;
    running.configured = true;
    Ok(true)
}

/// Either signal ends its server too (docs/facts/mps-control.md#crashes-and-hangs).
pub fn end(running: &mut Running) {
    running.child.signal(Signal::SIGTERM);
    if running.child.wait(Deadline::after(GRACE)).is_none() {
        running.child.kill(Deadline::after(GRACE));
    }
}
