//! One report in words.

use crate::job::report::{self, JobReport};
use mpsd_core::killed::{self, KilledTask};
use mpsd_core::observations::Observations;

/// The lines of a report.
pub fn lines(report: &JobReport) -> Vec<String> {
    let ready = match report.ready_ms {
        Some(ms) => format!("ready after {ms} ms"),
        None => "never ready".to_owned(),
    };
    let lasted = report.ended.saturating_sub(report.began);
    let mut lines = vec![
        format!(
            "job {} of {} on {}: {ready}, ended after {lasted} s, taken down in {} ms",
            report.job, report.user, report.node, report.teardown_ms
        ),
        format!("  {}", state(report)),
    ];
    let limits = report.daemons.iter().filter_map(report::limits);
    lines.extend(limits.map(|limits| format!("  limits of each client: {limits}")));
    lines.extend(report.drain.iter().map(|line| format!("  drain: {line}")));
    lines.extend(report.faults.iter().map(|line| format!("  fault: {line}")));
    lines.extend(
        report
            .undetermined
            .iter()
            .map(|line| format!("  undetermined: {line}")),
    );
    lines.extend(report.notes.iter().map(|line| format!("  at the end: {line}")));
    let said = report.said_by_user.as_ref();
    let is_client = |pid| said.is_some_and(|seen| seen.is_client(pid));
    let killed = killed::told(&report.killed, is_client);
    lines.extend(killed.into_iter().map(|line| format!("  {line}")));
    match said {
        Some(seen) => lines.extend(of_user(&beside(seen, report).told(&report.gpus))),
        None => lines.push("  its mpsd has left no account".to_owned()),
    }
    lines
}

fn state(report: &JobReport) -> String {
    let state = match (report.as_before, report.exclusive) {
        (true, true) => "the node is as before, compute modes restored",
        (true, false) => "the node is as before, compute modes were not changed",
        (false, _) => "the node is not as before",
    };
    // A drain has a line of its own.
    let drain = if report.drain.is_some() {
        ""
    } else {
        "; not drained"
    };
    format!("{state}{drain}")
}

/// What `mpsd` saw, less the ends that root noted.
fn beside(seen: &Observations, report: &JobReport) -> Observations {
    let mut seen = seen.clone();
    seen.killed.retain(|client| {
        let is_noted = |task: &KilledTask| (task.pid, task.signal) == (client.pid, client.signal);
        !report.killed.iter().any(is_noted)
    });
    seen
}

/// A user's word, and marked so.
fn of_user(told: &[String]) -> impl Iterator<Item = String> {
    let lines = told.iter().enumerate();
    lines.map(|(n, line)| match n {
        0 => format!("  by the job's own mpsd: {line}"),
        _ => format!("    {line}"),
    })
}
