//! The audit trail: lines with fields in the node's log, which say who had MPS on which GPUs.

use super::journal::Journal;
use super::prepared::Job;
use super::report;
use mpsd_core::text;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// For a log without fields.
    pub line: String,
    pub fields: Vec<(&'static str, String)>,
}

pub fn begun(journal: &Journal) -> Entry {
    let (gpus, limits) = (journal.gpu_names().join(", "), limits(journal).join(", "));
    let colon = if limits.is_empty() { "" } else { ": " };
    let line = format!(
        "MPS ready for {} on {gpus}{colon}{limits}",
        text::user(&journal.user)
    );
    let why = journal.record().reason.clone().map(|why| ("MPSD_WHY", why));
    entry(journal, "begin", &line, why.into_iter().collect())
}

pub fn unneeded(job: &Job, why: &str) -> Entry {
    let id = &job.submission.job;
    Entry {
        line: format!("job {id}: {why}"),
        fields: vec![
            ("MPSD_EVENT", "unneeded".to_owned()),
            ("MPSD_JOB", id.to_string()),
            ("MPSD_USER", job.user.name.clone()),
            ("MPSD_UID", job.user.uid.to_string()),
            ("MPSD_SCHEDULER", job.submission.scheduler.to_string()),
            ("MPSD_NODE", job.node.clone()),
            ("MPSD_WHY", why.to_owned()),
        ],
    }
}

/// At `now`, seconds since 1970; `None`: the job's MPS never was ready.
pub fn ended(journal: &Journal, now: u64, as_before: bool) -> Option<Entry> {
    journal.ready_ms?;
    let (is, answer) = match as_before {
        true => ("is", "yes"),
        false => ("is not", "no"),
    };
    let end = [
        ("MPSD_ENDED", now.to_string()),
        ("MPSD_AS_BEFORE", answer.to_owned()),
    ];
    let (user, took) = (
        text::user(&journal.user),
        now.saturating_sub(journal.began_at),
    );
    let line = format!("MPS ended for {user} after {took} s, the node {is} as it was");
    Some(entry(journal, "end", &line, end.into()))
}

fn entry(journal: &Journal, event: &str, line: &str, more: Vec<(&'static str, String)>) -> Entry {
    let mut fields = vec![
        ("MPSD_EVENT", event.to_owned()),
        ("MPSD_JOB", journal.job().to_string()),
        ("MPSD_USER", journal.user.clone()),
        ("MPSD_UID", journal.uid().to_string()),
        ("MPSD_SCHEDULER", journal.scheduler.to_string()),
        ("MPSD_NODE", journal.node.clone()),
        ("MPSD_BEGAN", journal.began_at.to_string()),
    ];
    fields.extend(journal.gpu_names().into_iter().map(|gpu| ("MPSD_GPU", gpu)));
    let limits = limits(journal).into_iter();
    fields.extend(limits.map(|limits| ("MPSD_LIMITS", limits)));
    fields.extend(more);
    let line = format!("job {}: {line}", journal.job());
    Entry { line, fields }
}

fn limits(journal: &Journal) -> Vec<String> {
    let daemons = journal.record().daemons.iter();
    let mut all: Vec<String> = daemons.filter_map(report::limits).collect();
    all.dedup();
    all
}
