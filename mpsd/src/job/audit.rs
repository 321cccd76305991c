//! The audit trail: who had MPS on which GPUs with which limits, from when to when, a line of the node's log with fields.

use super::journal::Journal;
use super::report;
use mpsd_core::observations::Observations;
use mpsd_core::text;

/// A line of the log, and what a reader may ask the log for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The line; where the log has no fields it says the same in words.
    pub line: String,
    /// Name and value; a name may come more than once.
    pub fields: Vec<(&'static str, String)>,
}

/// The job's MPS is proved ready.
pub fn begun(journal: &Journal) -> Entry {
    let gpus = journal.gpu_names().join(", ");
    let limits = limits(journal).join(", ");
    let limits = match limits.is_empty() {
        true => String::new(),
        false => format!(": {limits}"),
    };
    Entry {
        line: format!(
            "job {}: MPS ready for {} on {gpus}{limits}",
            journal.job,
            text::user(&journal.user)
        ),
        fields: fields(journal, "begin"),
    }
}

/// Root had these limits set, by the word of the job's `mpsd`.
pub fn set(journal: &Journal, limits: &str) -> Entry {
    let mut fields = fields(journal, "set");
    fields.push(("MPSD_LIMITS_SET", limits.to_owned()));
    Entry {
        line: format!(
            "job {}: root set limits of {}: {limits}",
            journal.job,
            text::user(&journal.user)
        ),
        fields,
    }
}

/// The job's MPS is gone at `now`, seconds since 1970; `None`: it never was ready.
/// What the job's `mpsd` says that was set while it ran is its user's word, and has a field of its own.
pub fn ended(journal: &Journal, observed: Option<&Observations>, now: u64, as_before: bool) -> Option<Entry> {
    journal.ready_ms?;
    let mut fields = fields(journal, "end");
    let set = observed.into_iter().flat_map(|observed| &observed.limits_set);
    fields.extend(set.map(|set| ("MPSD_SAID_BY_USER_SET", set.to_string())));
    fields.push(("MPSD_ENDED", now.to_string()));
    fields.push(("MPSD_AS_BEFORE", if as_before { "yes" } else { "no" }.to_owned()));
    let how = if as_before { "is" } else { "is not" };
    Some(Entry {
        line: format!(
            "job {}: MPS ended for {} after {} s, the node {how} as it was",
            journal.job,
            text::user(&journal.user),
            now.saturating_sub(journal.began)
        ),
        fields,
    })
}

fn fields(journal: &Journal, event: &str) -> Vec<(&'static str, String)> {
    let mut fields = vec![
        ("MPSD_EVENT", event.to_owned()),
        ("MPSD_JOB", journal.job.to_string()),
        ("MPSD_USER", journal.user.clone()),
        ("MPSD_UID", journal.uid.to_string()),
        ("MPSD_SCHEDULER", journal.scheduler.to_string()),
        ("MPSD_NODE", journal.node.clone()),
        ("MPSD_BEGAN", journal.began.to_string()),
    ];
    fields.extend(journal.gpu_names().into_iter().map(|gpu| ("MPSD_GPU", gpu)));
    fields.extend(limits(journal).into_iter().map(|limits| ("MPSD_LIMITS", limits)));
    fields
}

/// The limits of each daemon; those that several have alike once.
fn limits(journal: &Journal) -> Vec<String> {
    let mut all: Vec<String> = journal.daemons.iter().filter_map(report::limits).collect();
    all.dedup();
    all
}
