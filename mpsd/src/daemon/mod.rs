//! The daemon `mpsd`: runs as the job's user, one per job and node, over one control daemon or one a GPU.
//!
//! It starts them, applies and proves the limits, reports, and then sleeps in `poll` until something happens: no timer
//! runs while nothing does. When it is killed the job's MPS goes on: the control daemons write into files and hold
//! nothing of it.

mod change;
pub mod dialogue;
pub mod door;
mod ends;
pub mod events;
pub mod inquiry;
mod limits;
mod memory;
pub mod note;
pub mod partitions;
mod session;
mod sight;
mod start;
mod stop;
mod tail;
mod user_log;
mod watch;

use crate::job::spec::{REPORT_FD, SPEC_FD, Spec, StartReport};
use crate::sys::{confine, descriptors};
use std::fs::File;
use std::io::{Read, Write};
use std::time::Instant;

/// Longest specification, bytes.
const LONGEST_SPEC: u64 = 1 << 20;

/// Runs the job's `mpsd` to its end.
///
/// # Errors
/// One line; the same has gone to the report descriptor.
pub fn run() -> Result<(), String> {
    let began = Instant::now();
    let spec = own_spec()?;
    let mut report = inherited(REPORT_FD, "report")?;
    let mut sight = sight::Sight::open();
    let mut events = events::Events::new()?;
    let mut log = user_log::UserLog::open(&spec);
    let started = start::all(&spec, &mut events, |why| send(&mut report, &Err(why.clone())));
    let running = started
        .map_err(|why| why.to_string())
        .inspect_err(|why| log.line(why))?;
    log.line(&format!("ready after {} ms", began.elapsed().as_millis()));
    send(
        &mut report,
        &Ok(running.iter().map(start::Running::ready).collect()),
    );
    drop(report);
    match spec.daemons.first().map(|first| door::Door::open(&first.log)) {
        Some(Ok(door)) => events.watch_door(door),
        Some(Err(why)) => log.line(&format!("'mpsctl set' cannot reach this mpsd: {why}")),
        None => {}
    }
    watch::until_the_end(&spec, running, &mut events, &mut log, &mut sight);
    Ok(())
}

/// Asks the job's control daemons to end: `mpsd --stop`, run as the job's user by the teardown.
///
/// # Errors
/// One line when a daemon did not go.
pub fn stop() -> Result<(), String> {
    stop::all(&own_spec()?)
}

/// Asks the job's control daemons what they say of themselves, and reports each answer: `mpsd --look`, run as the job's user
/// for root, who does not talk to a user's daemon.
///
/// # Errors
/// One line when there is nobody to report to.
pub fn look() -> Result<(), String> {
    let spec = own_spec()?;
    let mut report = inherited(REPORT_FD, "report")?;
    let said = inquiry::ask_all(&spec.control, &spec.daemons, spec.command_time());
    told(&mut report, &said)
}

/// Asks the job's `mpsd` to set these limits, a line of JSON, and reports its answer: `mpsd --set`, run as the job's user for root.
///
/// # Errors
/// One line when there is nobody to report to.
pub fn set(limits: &str) -> Result<(), String> {
    let spec = own_spec()?;
    let mut report = inherited(REPORT_FD, "report")?;
    let limits = serde_json::from_str(limits).map_err(|e| format!("unreadable limits: {e}"))?;
    told(&mut report, &door::ask(&spec.daemons, &limits, door::TIME))
}

fn told(report: &mut File, what: &impl serde::Serialize) -> Result<(), String> {
    let line = serde_json::to_string(what).map_err(|e| e.to_string())?;
    let written = report.write_all((line + "\n").as_bytes());
    written.map_err(|e| format!("cannot report: {e}"))
}

/// The specification; from here on nobody may look into this process, or take it over: its user's other processes are in
/// the job's limits, and this one is not.
fn own_spec() -> Result<Spec, String> {
    confine::undumpable().map_err(|e| format!("cannot be kept from debuggers: {e}"))?;
    let mut text = String::new();
    inherited(SPEC_FD, "specification")?
        .take(LONGEST_SPEC)
        .read_to_string(&mut text)
        .map_err(|e| format!("cannot read the specification: {e}"))?;
    serde_json::from_str(&text)
        .map_err(|e| format!("unreadable specification: {e}; mps-prologue starts this program"))
}

fn inherited(number: i32, what: &str) -> Result<File, String> {
    let taken = descriptors::take(number).map(File::from);
    taken.map_err(|e| format!("descriptor {number} ({what}): {e}"))
}

fn send(report: &mut File, what: &StartReport) {
    // A prologue that has gone does not end the job's MPS: the epilogue will.
    if let Ok(line) = serde_json::to_string(what) {
        let _ = report.write_all((line + "\n").as_bytes());
    }
}
