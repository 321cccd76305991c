//! `mpsctl report`: the reports of jobs that have ended on this node, one by one or as a summary.

use super::terminal::say;
use super::{NAME, complain};
use crate::job::report::{self, JobReport};
use crate::node::reports::{self, StoredReports};
use crate::sys::files::FileError;
use mpsd_core::config::Settings;
use mpsd_core::failure::{EXIT_REFUSED, Undetermined};
use mpsd_core::killed::{self, KilledTask};
use mpsd_core::observations::Observations;
use mpsd_core::{Failure, JobId, Refusal};
use std::time::{SystemTime, UNIX_EPOCH};

/// `mpsctl report`.
#[derive(Debug, Clone, clap::Args)]
pub struct ReportVerb {
    /// The job; without one, a summary of all
    #[arg(value_name = "JOB")]
    pub job: Option<String>,
    /// Only jobs that began so long ago or later: 90m, 12h, 7d
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// The reports themselves, an object a line
    #[arg(long)]
    pub json: bool,
    /// The node's name in the scheduler; this host's if not given
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

impl ReportVerb {
    /// Prints it; returns the exit code: 1 if there is no report of the job.
    ///
    /// # Errors
    /// The time or the job's name is invalid, or the reports cannot be read.
    pub fn run(&self, settings: &Settings) -> Result<u8, Failure> {
        let since = self.since.as_deref().map_or(Ok(0), since)?;
        let job = self.job.as_deref().map(JobId::parse).transpose()?;
        let uid = nix::unistd::geteuid();
        let StoredReports {
            reports: mut found,
            unread,
        } = match (uid.is_root(), &job) {
            (true, _) => reports::read(&settings.paths, since).map_err(unreadable)?,
            (false, Some(job)) => own(settings, uid.as_raw(), job, since)?,
            (false, None) => {
                let why = "the reports of all jobs are root's";
                let allowed = "root, or 'mpsctl report JOB' for a job of one's own";
                return Err(Refusal::new("report", why, allowed).into());
            }
        };
        if unread > 0 {
            let why = "unreadable, or of another version of mpsd";
            complain(
                NAME,
                &format!("{unread} reports of this node are left out: {why}"),
            );
        }
        if let Some(job) = &job {
            // Also the reports of its steps with daemons of their own.
            found.retain(|report| report.job.belongs_to(job));
        }
        found.reverse();
        let lines: Vec<String> = match &job {
            _ if self.json => found
                .iter()
                .filter_map(|report| serde_json::to_string(report).ok())
                .collect(),
            Some(job) if found.is_empty() => vec![no_report(job, uid.is_root())],
            Some(_) => found.iter().flat_map(lines).collect(),
            None => summary(&found),
        };
        lines.iter().for_each(|line| say(&format!("{line}\n")));
        Ok(if job.is_some() && found.is_empty() {
            EXIT_REFUSED
        } else {
            0
        })
    }
}

/// One report as one paragraph, for the job's own output.
pub fn paragraph(report: &JobReport) -> String {
    let lines = lines(report);
    let lines: Vec<&str> = lines.iter().map(|line| line.trim_start()).collect();
    lines.join("; ")
}

fn unreadable(why: FileError) -> Undetermined {
    Undetermined::new("the job reports of this node", why.to_string())
}

/// The reports of `job` that its user may read, the youngest first.
fn own(settings: &Settings, uid: u32, job: &JobId, since: u64) -> Result<StoredReports, Undetermined> {
    let kept = reports::read_own(&settings.paths, uid, job).map_err(unreadable)?;
    let mut reports = kept.unwrap_or_default();
    reports.retain(|report| report.began >= since);
    reports.sort_by_key(|report| std::cmp::Reverse(report.began));
    Ok(StoredReports { reports, unread: 0 })
}

fn no_report(job: &JobId, is_root: bool) -> String {
    match is_root {
        true => format!(
            "job {job}: no report on this node: it had no MPS here, has not ended, or its report is gone"
        ),
        false => format!(
            "job {job}: no report for you on this node: it is another user's, had no MPS here, has not ended, or root alone has its report (after a reboot; of one's own jobs the last 32 are kept, and none where run_dir is no tmpfs)"
        ),
    }
}

/// The time that long ago, in seconds since 1970.
fn since(text: &str) -> Result<u64, Refusal> {
    let wrong = || Refusal::new(format!("--since {text}"), "it is no time", "90m, 12h, 7d");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number = text.strip_suffix(unit).and_then(|n| n.parse::<u64>().ok());
    let ago = number.ok_or_else(wrong)?.saturating_mul(seconds);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(now.unwrap_or_default().as_secs().saturating_sub(ago))
}

/// The lines of a report.
fn lines(report: &JobReport) -> Vec<String> {
    let JobReport {
        job,
        user,
        node,
        teardown_ms,
        ..
    } = report;
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
        ("limits of each client: ", &limits),
        ("drain: ", &report.drain.iter().cloned().collect()),
        ("fault: ", &report.faults),
        ("undetermined: ", &report.undetermined),
        ("at the end: ", &report.notes),
        ("", &killed_lines(report)),
    ] {
        lines.extend(texts.iter().map(|text| format!("  {what}{text}")));
    }
    let Some(observed) = &report.said_by_user else {
        lines.push("  its mpsd has left no account".to_owned());
        return lines;
    };
    // The user's word, and marked so.
    for (n, line) in without_known_ends(observed, report)
        .lines(&report.gpus)
        .iter()
        .enumerate()
    {
        lines.push(match n {
            0 => format!("  by the job's own mpsd: {line}"),
            _ => format!("    {line}"),
        });
    }
    lines
}

fn killed_lines(report: &JobReport) -> Vec<String> {
    let observed = report.said_by_user.as_ref();
    let is_client = |pid| observed.is_some_and(|observed| observed.is_client(pid));
    killed::told(&report.killed, is_client)
}

/// The observations without the ended clients that root itself knows.
fn without_known_ends(observed: &Observations, report: &JobReport) -> Observations {
    let mut observed = observed.clone();
    observed.killed.retain(|client| {
        let is_known = |task: &KilledTask| (task.pid, task.signal) == (client.pid, client.signal);
        !report.killed.iter().any(is_known)
    });
    observed
}

/// Many reports in a few lines.
fn summary(reports: &[JobReport]) -> Vec<String> {
    if reports.is_empty() {
        return vec!["no job has left a report on this node".to_owned()];
    }
    let count = |is: fn(&JobReport) -> bool| reports.iter().filter(|report| is(report)).count();
    let observed = |is: fn(&Observations) -> bool| {
        let all = reports.iter().filter_map(|report| report.said_by_user.as_ref());
        all.filter(|observed| is(observed)).count()
    };
    let ready = reports.iter().filter_map(|report| report.ready_ms);
    let undelivered = |report: &JobReport| report.drain.is_some() && !report.drained;
    let lines = [
        ("jobs", reports.len().to_string()),
        (
            "node not as before",
            count(|report| !report.as_before).to_string(),
        ),
        ("drained", count(|report| report.drained).to_string()),
        ("drain not delivered", count(undelivered).to_string()),
        (
            "never ready",
            count(|report| report.ready_ms.is_none()).to_string(),
        ),
        ("time to ready", times(ready)),
        ("teardown", times(reports.iter().map(|report| report.teardown_ms))),
        (
            "lost a server",
            observed(|all| !all.servers_lost.is_empty()).to_string(),
        ),
        (
            "lost a control daemon",
            observed(|all| !all.daemons_lost.is_empty()).to_string(),
        ),
        (
            "a client caused a fatal GPU error",
            observed(|all| !all.fatal.is_empty()).to_string(),
        ),
        (
            "a client got no context",
            observed(|all| !all.refused.is_empty()).to_string(),
        ),
        (
            "a client over its memory limit",
            observed(|all| !all.over_memory.is_empty()).to_string(),
        ),
        (
            "a GPU without a client at any look",
            count(JobReport::had_idle_gpu).to_string(),
        ),
    ];
    lines.map(|(what, number)| format!("{what}: {number}")).to_vec()
}

fn times(values: impl Iterator<Item = u64>) -> String {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    match (values.get(values.len() / 2), values.last()) {
        (Some(median), Some(most)) => format!("median {median} ms, most {most} ms"),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
