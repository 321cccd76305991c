//! Many reports in a few lines.

use crate::job::report::JobReport;

/// The lines of a summary.
pub fn lines(reports: &[JobReport]) -> Vec<String> {
    if reports.is_empty() {
        return vec!["no job has left a report on this node".to_owned()];
    }
    let count = |is: fn(&JobReport) -> bool| reports.iter().filter(|report| is(report)).count();
    let seen = |is: fn(&mpsd_core::observations::Observations) -> bool| {
        let of_user = reports.iter().filter_map(|report| report.said_by_user.as_ref());
        of_user.filter(|seen| is(seen)).count()
    };
    vec![
        format!("jobs: {}", reports.len()),
        format!("node not as before: {}", count(|report| !report.as_before)),
        format!("drained: {}", count(|report| report.drained)),
        format!(
            "drain not delivered: {}",
            count(|report| report.drain.is_some() && !report.drained)
        ),
        format!("never ready: {}", count(|report| report.ready_ms.is_none())),
        times(
            "time to ready",
            reports.iter().filter_map(|report| report.ready_ms),
        ),
        times("teardown", reports.iter().map(|report| report.teardown_ms)),
        format!("lost a server: {}", seen(|seen| !seen.servers_lost.is_empty())),
        format!(
            "lost a control daemon: {}",
            seen(|seen| !seen.daemons_lost.is_empty())
        ),
        format!(
            "a client caused a fatal GPU error: {}",
            seen(|seen| !seen.fatal.is_empty())
        ),
        format!(
            "a client got no context: {}",
            seen(|seen| !seen.refused.is_empty())
        ),
        format!(
            "a client over its memory limit: {}",
            seen(|seen| !seen.over_memory.is_empty())
        ),
        format!(
            "a GPU without a client at any look: {}",
            count(JobReport::had_idle_gpu)
        ),
    ]
}

fn times(of: &str, values: impl Iterator<Item = u64>) -> String {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    let median = values.get(values.len() / 2);
    match (median, values.last()) {
        (Some(median), Some(most)) => format!("{of}: median {median} ms, most {most} ms"),
        _ => format!("{of}: -"),
    }
}
