//! The daemon `mpsd`: runs as the job's user, over the job's control daemons on this node. These
//! write into files and do not need it, so if it is killed, the job's MPS continues.

mod comeback;
pub mod dialogue;
mod events;
pub mod logs;
mod memory;
mod observer;
mod outside;
pub mod queries;
mod session;
mod start;
mod stop;
mod usage;
mod watch;

use crate::job::spec::{REPORT_FD, SPEC_FD, Spec, StartReport};
use mpsd_sys::{confine, descriptors};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

const LONGEST_SPEC: u64 = 1 << 20;

/// An error of the start was also written to the report descriptor.
pub fn run() -> Result<(), String> {
    let began = Instant::now();
    let spec = own_spec()?;
    let mut report = inherited(REPORT_FD, "report")?;
    let mut observer = observer::Observer::open(&spec);
    observer.log = logs::UserLog::open(&spec);
    // If the prologue has gone, the job's MPS continues until the epilogue.
    let mut report_start = |what: &StartReport| drop(send(&mut report, what));
    let made = events::Events::new();
    let mut events = made.inspect_err(|why| report_start(&Err(why.clone())))?;
    let started = start::all(&spec, &mut events, |why| report_start(&Err(why.to_owned())));
    let running = started.inspect_err(|why| observer.log.line(why))?;
    let line = format!("ready after {} ms", began.elapsed().as_millis());
    observer.log.line(&line);
    report_start(&Ok(running.iter().map(start::Running::ready).collect()));
    drop(report);
    watch::until_the_end(&spec, running, &mut events, &mut observer);
    Ok(())
}

/// `mpsd --stop`, run by the teardown.
pub fn stop() -> Result<(), String> {
    stop::all(&own_spec()?)
}

/// `mpsd --terminate`: ends those `clients` (pids with commas) that the control daemons list, and
/// reports their number.
pub fn terminate(clients: &str) -> Result<(), String> {
    let spec = own_spec()?;
    let mut report = inherited(REPORT_FD, "report")?;
    let clients = clients.split(',').filter_map(|pid| pid.parse().ok());
    let clients: Vec<i32> = clients.collect();
    send(&mut report, &stop::clients(&spec, &clients))
}

/// `mpsd --look`, run as the job's user, because root never talks to the control daemons.
pub fn look() -> Result<(), String> {
    let spec = own_spec()?;
    let mut report = inherited(REPORT_FD, "report")?;
    let answers = queries::ask_all(&spec.control, &spec.daemons, spec.command_time());
    send(&mut report, &answers)
}

fn send(report: &mut File, what: &impl serde::Serialize) -> Result<(), String> {
    let line = serde_json::to_string(what).map_err(|e| e.to_string())?;
    let written = report.write_all((line + "\n").as_bytes());
    written.map_err(|e| format!("cannot report: {e}"))
}

/// `mpsd --note FILE`: the line is on standard input. `group`: of a file that this makes.
pub fn note(file: &Path, group: Option<u32>) -> Result<(), String> {
    keep_debuggers_out()?;
    logs::append_note(file, group, std::io::stdin())
}

/// Keeps out the user's processes, which have the job's limits, also where `daemon_group` does not.
fn keep_debuggers_out() -> Result<(), String> {
    confine::undumpable().map_err(|e| format!("cannot be kept from debuggers: {e}"))
}

fn own_spec() -> Result<Spec, String> {
    keep_debuggers_out()?;
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
