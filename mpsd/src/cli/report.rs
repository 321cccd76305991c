//! `mpsctl report`: the reports of jobs that have ended on this node, in words or as JSON.

use super::chart;
use super::terminal::{cut, say, say_json, width, wrap};
use super::{NAME, complain};
use crate::job::report::{self, JobReport};
use crate::node::reports::{self, StoredReports};
use crate::scheduler::setup::VerbError;
use crate::scheduler::{self, Site};
use mpsd_core::config::Settings;
use mpsd_core::failure::Undetermined;
use mpsd_core::killed;
use mpsd_core::record::{self, RecordGpu, RecordRead, RecordState, memory_limit};
use mpsd_core::usage::GpuUsage;
use mpsd_core::{Failure, JobId, Refusal};
use mpsd_sys::files::FileError;
use std::time::{SystemTime, UNIX_EPOCH};

const NOT_TOLD_APART: &str = "neither the use of its GPUs nor advice: the driver does not tell the jobs of a shared MPS apart";

/// `mpsctl report`.
#[derive(Debug, Clone, clap::Args)]
pub struct ReportVerb {
    /// The job; without one, all jobs of the node
    #[arg(value_name = "JOB")]
    job: Option<String>,
    /// Only jobs that began this long ago or later: 90m, 12h, 7d
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// The reports themselves, an object a line
    #[arg(long)]
    json: bool,
    /// The node's name in the scheduler; this host's if not given
    #[arg(long, value_name = "NAME")]
    pub(super) node: Option<String>,
}

impl ReportVerb {
    /// Prints it; returns the exit code. It is an error if the job has no report.
    pub(super) fn run(&self, settings: &Settings) -> Result<u8, VerbError> {
        let since = self
            .since
            .as_deref()
            .map_or(Ok(0), since)
            .map_err(Failure::from)?;
        let mut found = match &self.job {
            None => stored(settings, None, since)?,
            Some(job) => of_job(settings, job, since)?,
        };
        if let (Some(job), true) = (&self.job, found.is_empty()) {
            let is_root = nix::unistd::geteuid().is_root();
            return Err(not_ended(settings, job)
                .unwrap_or_else(|| no_report(job, is_root))
                .into());
        }
        found.reverse();
        for report in &found {
            match self.json {
                true => say_json(report),
                false => say(&(on_terminal(report).join("\n") + "\n")),
            }
        }
        Ok(0)
    }
}

/// One report with its chart, as wide as the terminal.
fn on_terminal(report: &JobReport) -> Vec<String> {
    let width = width();
    let text = |line: String| {
        let indent = line.chars().take_while(|c| *c == ' ').count();
        wrap(&line, indent + 2, width)
    };
    let mut all: Vec<String> = lines(report).into_iter().map(text).collect();
    let usage = report
        .said_by_user
        .as_ref()
        .and_then(|seen| seen.usage.as_ref());
    let chart = usage.map(|usage| chart::lines(usage, &report.gpus));
    let chart = chart.unwrap_or_default().into_iter();
    all.extend(chart.map(|line| cut(line, width)));
    all.extend(advice(report).map(text));
    all
}

fn advice(report: &JobReport) -> Option<String> {
    let advice = report.advice.as_ref()?;
    Some(format!("  advice: {}", advice.text))
}

/// The reports that the caller may read: root all, a user those of one job.
fn stored(settings: &Settings, job: Option<&JobId>, since: u64) -> Result<Vec<JobReport>, Failure> {
    let uid = nix::unistd::geteuid();
    let unreadable = |why: FileError| {
        Failure::from(Undetermined::new(
            "the job reports of this node",
            why.to_string(),
        ))
    };
    match (uid.is_root(), job) {
        (true, _) => {
            let StoredReports { reports, unread } =
                reports::read(&settings.paths, since).map_err(unreadable)?;
            if unread > 0 {
                let why = "unreadable, or of another version of mpsd";
                complain(
                    NAME,
                    &format!("{unread} reports of this node are left out: {why}"),
                );
            }
            Ok(reports)
        }
        (false, Some(job)) => {
            let own = reports::read_own(&settings.paths, uid.as_raw(), job).map_err(unreadable)?;
            let mut own = own.unwrap_or_default();
            own.retain(|report| report.began >= since);
            own.sort_by_key(|report| std::cmp::Reverse(report.began));
            Ok(own)
        }
        (false, None) => {
            let why = "the reports of all jobs are root's";
            let allowed = "root, or 'mpsctl report JOB' for your own job";
            Err(Refusal::new("report", why, allowed).into())
        }
    }
}

/// The reports of `job`, and of its steps with daemons of their own, that the caller may read.
pub(super) fn of_job(
    settings: &Settings,
    job: &str,
    since: u64,
) -> Result<Vec<JobReport>, Failure> {
    for job in scheduler::meant(job, &Site::of(settings))? {
        let mut found = stored(settings, Some(&job), since)?;
        found.retain(|report| report.job.belongs_to(&job));
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

/// One report as one paragraph, for the job's own output.
pub fn paragraph(report: &JobReport) -> String {
    let mut lines = lines(report);
    lines.extend(advice(report));
    let lines: Vec<&str> = lines.iter().map(|line| line.trim_start()).collect();
    lines.join("; ")
}

/// What the record of a job of the caller's says, if the job is still here.
fn not_ended(settings: &Settings, job: &str) -> Option<String> {
    let uid = nix::unistd::geteuid();
    let meant = scheduler::meant(job, &Site::of(settings)).ok()?;
    let record =
        meant.iter().find_map(
            |job| match record::look(&settings.paths.job(job).record()) {
                Ok(RecordRead::Found(record)) => Some(record),
                _ => None,
            },
        )?;
    if !uid.is_root() && record.uid != uid.as_raw() {
        return None;
    }
    let reason = record.reason.as_deref().unwrap_or_default();
    Some(match record.state {
        RecordState::Starting | RecordState::Ready => {
            format!("job {job}: no report yet: it runs; 'mpsctl status {job}' shows its MPS now")
        }
        _ => format!("job {job}: no report: {reason}"),
    })
}

fn no_report(job: &str, is_root: bool) -> String {
    match is_root {
        true => format!(
            "job {job}: no report on this node: it had no MPS here (auto gave it none, or it did not ask), has not ended, or its report is gone"
        ),
        false => format!(
            "job {job}: no report for you on this node: it is another user's, had no MPS here, has not ended, or only root has its \
             report (after a reboot; you have your last 32 jobs' reports, and none if run_dir is no tmpfs)"
        ),
    }
}

fn since(text: &str) -> Result<u64, Refusal> {
    let wrong = || Refusal::new(format!("--since {text}"), "it is no time", "90m, 12h, 7d");
    let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    let mut parsed = units.iter().filter_map(|(unit, seconds)| {
        let number = text.strip_suffix(*unit)?.parse::<u64>().ok()?;
        Some(number.saturating_mul(*seconds))
    });
    let ago = parsed.next().ok_or_else(wrong)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(now.unwrap_or_default().as_secs().saturating_sub(ago))
}

pub(super) fn lines(report: &JobReport) -> Vec<String> {
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
    let drain = if report.drain.is_some() {
        ""
    } else {
        "; not drained"
    };
    let mut lines = vec![
        format!(
            "job {job} of {user} on {node}: {ready}, ended after {lasted} s, taken down in {teardown_ms} ms"
        ),
        format!("  {state}{drain}"),
    ];
    let limits: Vec<String> = report.daemons.iter().filter_map(report::limits).collect();
    for (what, texts) in [
        ("", &report.auto.iter().cloned().collect()),
        ("limits of each client: ", &limits),
        ("drain: ", &report.drain.iter().cloned().collect()),
        ("fault: ", &report.faults),
        ("undetermined: ", &report.undetermined),
        ("at the end: ", &report.notes),
        ("", &killed_lines(report)),
    ] {
        lines.extend(texts.iter().map(|text| format!("  {what}{text}")));
    }
    let Some(observations) = &report.said_by_user else {
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
    let more: Vec<String> = match report.shared {
        // The last words name each client's job.
        true => [NOT_TOLD_APART.to_owned()]
            .into_iter()
            .chain(observations.last_words)
            .collect(),
        false => report
            .gpus
            .iter()
            .flat_map(|gpu| used(report, gpu))
            .collect(),
    };
    lines.extend(more.iter().map(|line| format!("    {line}")));
    lines
}

/// What the driver counted of a GPU, and how close its clients came to their limit.
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
    all.into_iter()
        .map(|line| format!("GPU {}: {line}", gpu.index))
        .collect()
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
        let (kilojoules, time) = (energy / 1_000_000, chart::time(usage.energy_ms));
        let tenths = energy / 100_000 % 10;
        all.push(format!("{kilojoules}.{tenths} kJ in {time}, {watts} W"));
    }
    all
}

fn killed_lines(report: &JobReport) -> Vec<String> {
    let observations = report.said_by_user.as_ref();
    let is_client = |pid| observations.is_some_and(|observations| observations.is_client(pid));
    killed::told(&report.killed, is_client)
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
