//! The daemon `mpsd`: runs as the job's user, one per job and node, over one control daemon or one a GPU.
//!
//! It starts them, applies and proves the limits, reports, and then sleeps in `poll` until something happens: no timer
//! runs while nothing does. When it is killed the job's MPS goes on: the control daemons write into files and hold
//! nothing of it.

pub mod dialogue;
pub mod events;
mod memory;
mod session;
mod start;
mod stop;
mod tail;
mod user_log;
mod watch;

use crate::job::spec::{REPORT_FD, Report, SPEC_FD, Spec};
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
    let mut report = report_file()?;
    let mut events = events::Events::new()?;
    let mut log = user_log::UserLog::open(&spec);
    let tell = |failed: &start::StartFailed| {
        let said = Report::Failed {
            reason: failed.reason.clone(),
            tail: failed.tail.clone(),
        };
        let _ = send(&mut report, &said);
    };
    match start::all(&spec, &mut events, tell) {
        Ok(running) => {
            let daemons = running.iter().map(start::Running::ready).collect();
            let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            log.line(&format!("ready after {ms} ms"));
            send(&mut report, &Report::Ready { daemons, ms })?;
            drop(report);
            watch::until_the_end(&spec, running, &mut events, &mut log);
            Ok(())
        }
        Err(failed) => {
            log.line(&failed.reason);
            Err(failed.reason)
        }
    }
}

/// Asks the job's control daemons to end: `mpsd --stop`, run as the job's user by the teardown.
///
/// # Errors
/// One line when a daemon did not go.
pub fn stop() -> Result<(), String> {
    let spec = own_spec()?;
    stop::all(&spec)
}

/// The specification; from here on nobody may look into this process, or take it over: its user's other processes are in
/// the job's limits, and this one is not.
fn own_spec() -> Result<Spec, String> {
    confine::undumpable().map_err(|e| format!("cannot be kept from debuggers: {e}"))?;
    read_spec()
}

fn read_spec() -> Result<Spec, String> {
    let file =
        descriptors::take(SPEC_FD).map_err(|e| format!("descriptor {SPEC_FD} (specification): {e}"))?;
    let mut text = String::new();
    File::from(file)
        .take(LONGEST_SPEC)
        .read_to_string(&mut text)
        .map_err(|e| format!("cannot read the specification: {e}"))?;
    serde_json::from_str(&text)
        .map_err(|e| format!("unreadable specification: {e}; mps-prologue starts this program"))
}

fn report_file() -> Result<File, String> {
    let file = descriptors::take(REPORT_FD).map_err(|e| format!("descriptor {REPORT_FD} (report): {e}"))?;
    Ok(File::from(file))
}

fn send(report: &mut File, what: &Report) -> Result<(), String> {
    let mut line = serde_json::to_string(what).map_err(|e| e.to_string())?;
    line.push('\n');
    // A prologue that has gone does not end the job's MPS: the epilogue will.
    let _ = report.write_all(line.as_bytes());
    Ok(())
}
