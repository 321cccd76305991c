//! One report in words.

use crate::job::report::{self, Report};
use mpsd_core::seen::Seen;

/// The lines of a report.
pub fn lines(report: &Report) -> Vec<String> {
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
    match &report.said_by_user {
        Some(seen) => lines.extend(of_user(report, seen)),
        None => lines.push("  its mpsd has left no account".to_owned()),
    }
    lines
}

fn state(report: &Report) -> String {
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

/// What the job's own `mpsd` said: a user's word, and marked so.
fn of_user(report: &Report, seen: &Seen) -> Vec<String> {
    let mut lines = vec![format!(
        "  by the job's own mpsd: {} clients, {} at once",
        seen.clients, seen.most_clients
    )];
    for gpu in &report.gpus {
        let look = seen.gpus.iter().find(|look| look.uuid == gpu.uuid);
        lines.push(match look {
            Some(look) => format!(
                "    GPU {}: at most {} clients and {} MiB at a look",
                gpu.index, look.most_clients, look.most_memory_mib
            ),
            None => format!("    GPU {}: no client at any look", gpu.index),
        });
    }
    for client in &seen.refused {
        lines.push(format!(
            "    client {} got no context; {} others had one",
            client.pid, client.beside
        ));
    }
    for server in &seen.servers_lost {
        let how = match server.status {
            0 => "killed or ended with status 0".to_owned(),
            status => format!("status {status}"),
        };
        lines.push(format!(
            "    server {} was lost ({how}) with {} clients, which got error 806",
            server.pid, server.clients
        ));
    }
    for daemon in &seen.daemons_lost {
        lines.push(format!(
            "    control daemon {} was lost ({})",
            daemon.pid, daemon.how
        ));
    }
    lines.extend(
        seen.fatal
            .iter()
            .map(|pid| format!("    client {pid} caused a fatal GPU error")),
    );
    lines.extend(
        seen.limits_changed
            .iter()
            .map(|change| format!("    the user had the control daemon change a limit: {change}")),
    );
    for over in &seen.over_memory {
        let ended = if over.terminated { ", and was ended" } else { "" };
        lines.push(format!(
            "    client {} held {} MiB over a limit of {} MiB{ended}",
            over.pid, over.held_mib, over.limit_mib
        ));
    }
    lines
}
