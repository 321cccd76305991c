//! `mpsctl report`: what root wrote down of jobs that have ended on this node.

mod summary;
mod text;

use super::{NAME, complain, say};
use crate::job::report::JobReport;
use crate::node::reports::{self, StoredReports};
use mpsd_core::config::Settings;
use mpsd_core::failure::{EXIT_REFUSED, Undetermined};
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
    /// Prints it; returns the exit code: 1 where there is no report of the job.
    ///
    /// # Errors
    /// The time is none, the job's name is none, or the reports cannot be read.
    pub fn run(&self, settings: &Settings) -> Result<u8, Failure> {
        let since = self.since.as_deref().map_or(Ok(0), since)?;
        let job = self.job.as_deref().map(JobId::parse).transpose()?;
        let uid = nix::unistd::geteuid();
        let StoredReports {
            reports: mut found,
            unread: left_out,
        } = match (uid.is_root(), &job) {
            (true, _) => reports::read(&settings.paths, since).map_err(unread)?,
            (false, Some(job)) => own(settings, uid.as_raw(), job, since)?,
            (false, None) => {
                let why = "the reports of all jobs are root's";
                let allowed = "root, or 'mpsctl report JOB' for a job of one's own";
                return Err(Refusal::new("report", why, allowed).into());
            }
        };
        if left_out > 0 {
            let line = format!(
                "{left_out} reports of this node are left out: unreadable, or of another version of mpsd"
            );
            complain(NAME, &line);
        }
        if let Some(job) = &job {
            // A job's own, and those of its steps with daemons of their own.
            found.retain(|report| report.job.belongs_to(job));
        }
        found.reverse();
        let lines: Vec<String> = match (&job, self.json) {
            (_, true) => found
                .iter()
                .filter_map(|report| serde_json::to_string(report).ok())
                .collect(),
            (Some(job), false) => of_job(job, &found, uid.is_root()),
            (None, false) => summary::lines(&found),
        };
        lines.iter().for_each(|line| say(&format!("{line}\n")));
        let none = job.is_some() && found.is_empty();
        Ok(if none { EXIT_REFUSED } else { 0 })
    }
}

/// One report as one paragraph, for the job's own output.
pub fn paragraph(report: &JobReport) -> String {
    let lines = text::lines(report);
    let lines: Vec<&str> = lines.iter().map(|line| line.trim_start()).collect();
    lines.join("; ")
}

fn unread(why: String) -> Undetermined {
    Undetermined::new("the job reports of this node", why)
}

/// What is kept of `job` for user `uid`, the youngest first.
fn own(settings: &Settings, uid: u32, job: &JobId, since: u64) -> Result<StoredReports, Undetermined> {
    let kept = reports::read_own(&settings.paths, uid, job).map_err(unread)?;
    let mut found = StoredReports {
        reports: kept.unwrap_or_default(),
        unread: 0,
    };
    found.reports.retain(|report| report.began >= since);
    found
        .reports
        .sort_by_key(|report| std::cmp::Reverse(report.began));
    Ok(found)
}

fn of_job(job: &JobId, found: &[JobReport], is_root: bool) -> Vec<String> {
    match found {
        [] if !is_root => vec![format!(
            "job {job}: no report for you on this node: it is another user's, had no MPS here, has not ended, or root alone has its report (after a reboot; of one's own jobs the last 32 are kept, and none where run_dir is no tmpfs)"
        )],
        [] => vec![format!(
            "job {job}: no report on this node: it had no MPS here, has not ended, or its report is gone"
        )],
        found => found.iter().flat_map(text::lines).collect(),
    }
}

/// Seconds since 1970 of so long ago.
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
    let number: u64 = text
        .strip_suffix(unit)
        .and_then(|n| n.parse().ok())
        .ok_or_else(wrong)?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    Ok(now.saturating_sub(number.saturating_mul(seconds)))
}

#[cfg(test)]
mod tests;
