//! The report of a job in words.

use super::report::{self, JobReport};
use mpsd_core::killed;
use mpsd_core::record::{RecordGpu, memory_limit};
use mpsd_core::usage::GpuUsage;

const NOT_TOLD_APART: &str = "neither the use of its GPUs nor advice: the driver does not tell the jobs of a shared MPS apart";

pub fn lines(report: &JobReport) -> Vec<String> {
    let JobReport {
        job,
        user,
        node,
        teardown_ms,
        ..
    } = report;
    if let Some(why) = &report.not_started {
        return vec![format!("job {job} of {user} on {node}: not started: {why}")];
    }
    let ready = match report.ready_ms {
        Some(ms) => format!("ready after {ms} ms"),
        None => "never ready".to_owned(),
    };
    let lasted = report.ended.saturating_sub(report.began);
    let state = match (report.as_before, report.exclusive) {
        (true, true) => "the node is as before, compute modes restored",
        (true, false) => "the node is as before, compute modes were not changed",
        (false, _) => "the node is not as before",
    };
    // A drain has a line of its own.
    let drain = report.drain.as_ref().map_or("; not drained", |_| "");
    let mut lines = vec![
        format!(
            "job {job} of {user} on {node}: {ready}, ended after {lasted} s, taken down in {teardown_ms} ms"
        ),
        format!("  {state}{drain}"),
    ];
    let said = report.said_by_user.as_ref();
    let is_client = |pid| said.is_some_and(|said| said.is_client(pid));
    let killed = killed::told(&report.killed, is_client);
    let limits: Vec<String> = report.daemons.iter().filter_map(report::limits).collect();
    for (what, texts) in [
        ("", &report.auto.iter().cloned().collect()),
        ("limits of each client: ", &limits),
        ("drain: ", &report.drain.iter().cloned().collect()),
        ("fault: ", &report.faults),
        ("undetermined: ", &report.undetermined),
        ("at the end: ", &report.notes),
        ("", &killed),
    ] {
        lines.extend(texts.iter().map(|text| format!("  {what}{text}")));
    }
    let Some(observations) = said else {
        lines.push("  its mpsd has left no account".to_owned());
        return lines;
    };
    // The user's word, marked as such. Root's own lines have the tasks that root knows.
    let mut observations = observations.clone();
    let is_roots = |pid: i32| report.killed.iter().any(|task| task.pid == pid);
    observations.killed.retain(|client| !is_roots(client.pid));
    for (n, line) in observations.lines(&report.gpus).iter().enumerate() {
        let mark = match n {
            0 if report.shared => "  by the mpsd that it shared, of all jobs on it: ",
            0 => "  by the job's own mpsd: ",
            _ => "    ",
        };
        lines.push(format!("{mark}{line}"));
    }
    let together = report.gpus.iter().filter_map(|gpu| {
        let all = observations.of_job(job, &gpu.uuid)?;
        let (index, held, limit) = (gpu.index, all.held_mib, all.limit_mib);
        Some(format!(
            "    GPU {index}: its clients held at most {held} of the {limit} MiB that they may together"
        ))
    });
    lines.extend(together);
    let more = match report.shared {
        // The last words name each client's job.
        true => [vec![NOT_TOLD_APART.to_owned()], observations.last_words].concat(),
        false => {
            let gpus = report.gpus.iter();
            gpus.flat_map(|gpu| used(report, gpu)).collect()
        }
    };
    lines.extend(more.iter().map(|line| format!("    {line}")));
    lines
}

fn used(report: &JobReport, gpu: &RecordGpu) -> Vec<String> {
    let seen = report.said_by_user.as_ref();
    let held = seen.and_then(|seen| seen.gpus.iter().find(|known| known.uuid == gpu.uuid));
    let held = held
        .zip(memory_limit(&report.daemons, &gpu.uuid))
        .map(|(held, limit)| {
            let most = held.most_client_mib;
            format!("one client held at most {most} of the {limit} MiB that it may")
        });
    let usage = seen.and_then(|seen| seen.usage.as_ref()?.of(&gpu.uuid));
    let mut all: Vec<String> = usage.map(counted).unwrap_or_default();
    all.extend(held);
    let line = |line| format!("GPU {}: {line}", gpu.index);
    all.into_iter().map(line).collect()
}

fn counted(usage: &GpuUsage) -> Vec<String> {
    let percent = |value: Option<u8>, what: &str| value.map(|value| format!("{value} % {what}"));
    let shares = [
        percent(usage.sm_percent, "of its multiprocessors in use"),
        percent(usage.bandwidth_percent, "of its memory's bandwidth"),
        percent(usage.busy_percent, "of the time a kernel ran"),
        percent(
            usage.memory_busy_percent,
            "of the time its memory was read or written",
        ),
    ];
    let shares: Vec<String> = shares.into_iter().flatten().collect();
    let mut all = Vec::new();
    if !shares.is_empty() {
        all.push(shares.join(", "));
    }
    if let (Some(energy), Some(watts)) = (usage.energy_mj, usage.watts()) {
        let (kilojoules, time) = (energy / 1_000_000, time(usage.energy_ms));
        let tenths = energy / 100_000 % 10;
        all.push(format!("{kilojoules}.{tenths} kJ in {time}, {watts} W"));
    }
    all
}

pub fn advice(report: &JobReport) -> Option<String> {
    let advice = report.advice.as_ref()?;
    Some(format!("  advice: {}", advice.text))
}

/// For the job's own output.
pub fn paragraph(report: &JobReport) -> String {
    let mut lines = lines(report);
    lines.extend(advice(report));
    let lines: Vec<&str> = lines.iter().map(|line| line.trim_start()).collect();
    lines.join("; ")
}

/// `45 s`, `12 min`, `3.5 h`.
pub fn time(ms: u64) -> String {
    match ms / 1000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{}.{} h", seconds / 3600, seconds % 3600 / 360),
    }
}

#[cfg(test)]
#[path = "report_text_tests.rs"]
mod tests;
