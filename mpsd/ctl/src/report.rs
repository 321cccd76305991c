//! `mpsctl report`: the reports of jobs that have ended on this node, in words or as JSON.

use super::chart;
use super::terminal::{cut, say, say_json, width, wrap};
use super::{NAME, complain};
use batch::Location;
use mpsd::job::report::JobReport;
use mpsd::job::report_text::{advice, lines};
use mpsd::node::reports::{self, StoredReports};
use mpsd_core::config::Settings;
use mpsd_core::failure::Undetermined;
use mpsd_core::record::{self, RecordState};
use mpsd_core::{Failure, JobId, Refusal};
use mpsd_sys::files::FileError;
use mpsd_sys::now;
use setup::VerbError;

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
    /// Returns the exit code. It is an error if the job has no report.
    pub(super) fn run(&self, settings: &Settings) -> Result<u8, VerbError> {
        let since = self.since.as_deref().map_or(Ok(0), since);
        let since = since.map_err(Failure::from)?;
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

fn on_terminal(report: &JobReport) -> Vec<String> {
    let width = width();
    let text = |line: String| {
        let indent = line.chars().take_while(|c| *c == ' ').count();
        wrap(&line, indent + 2, width)
    };
    let mut all: Vec<String> = lines(report).into_iter().map(text).collect();
    let seen = report.said_by_user.as_ref();
    if let Some(usage) = seen.and_then(|seen| seen.usage.as_ref()) {
        let chart = chart::lines(usage, &report.gpus).into_iter();
        all.extend(chart.map(|line| cut(line, width)));
    }
    all.extend(advice(report).map(text));
    all
}

/// The reports that the caller may read: root all, a user those of one job.
fn stored(settings: &Settings, job: Option<&JobId>, since: u64) -> Result<Vec<JobReport>, Failure> {
    let uid = nix::unistd::geteuid();
    let what = "the job reports of this node";
    let unreadable = |why: FileError| Undetermined::new(what, why.to_string());
    match (uid.is_root(), job) {
        (true, _) => {
            let StoredReports { reports, unread } =
                reports::read(&settings.paths, since).map_err(unreadable)?;
            if unread > 0 {
                let why = "unreadable, or of another version of mpsd";
                let line = format!("{unread} reports of this node are left out: {why}");
                complain(NAME, &line);
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
fn of_job(settings: &Settings, job: &str, since: u64) -> Result<Vec<JobReport>, Failure> {
    for job in batch::meant(job, &Location::of(settings))? {
        let mut found = stored(settings, Some(&job), since)?;
        found.retain(|report| report.job.belongs_to(&job));
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

/// What the record of a job of the caller's says, if the job is still here.
fn not_ended(settings: &Settings, job: &str) -> Option<String> {
    let uid = nix::unistd::geteuid();
    let meant = batch::meant(job, &Location::of(settings)).ok()?;
    let mut meant = meant.iter();
    let record = meant.find_map(|job| record::found(&settings.paths.job(job).record()))?;
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
            "job {job}: no report on this node: it ran on another (ask there, by srun -w NODE or ssh), had no MPS (auto gave it none, or it did not ask), has not \
             ended, or its report is gone"
        ),
        false => format!(
            "job {job}: no report for you on this node: it ran on another (ask there, by srun -w NODE or ssh), is another user's, had no MPS, has not ended, or \
             only root has its report (after a reboot, beyond your last 32 jobs, or if run_dir is no tmpfs)"
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
    Ok(now().saturating_sub(ago))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_none_is_refused() {
        assert!(since("2h").unwrap() < since("1h").unwrap());
        assert_eq!(since("99999999999999999d"), Ok(0));
        for none in ["", "h", "2", "2w", "-1h", "1.5h", "é"] {
            assert!(since(none).is_err(), "{none:?}");
        }
    }
}
