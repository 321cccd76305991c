//! Where a drain goes, and what its reason says.

use batch::drain;
use mpsd_core::config::Settings;
use mpsd_core::{JobId, Scheduler};
use std::collections::BTreeSet;

/// Slurm shows 400 characters of a reason.
const MOST_NAMED: usize = 8;

/// A job's node in its scheduler, and how it is drained: as configured when the job began.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DrainTarget {
    pub job: JobId,
    /// The jobs that shared an MPS.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub sharers: BTreeSet<JobId>,
    pub scheduler: Scheduler,
    pub node: String,
    pub uid: u32,
    /// What a drain's reason begins with; `None`: the site drains nothing.
    pub prefix: Option<String>,
    /// As mpsd.toml says, else `SLURM_CONF`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_conf: Option<String>,
    pub gpus: Vec<String>,
}

impl DrainTarget {
    pub(super) fn new(job: &JobId, scheduler: Scheduler, node: &str, settings: &Settings) -> Self {
        Self {
            job: job.clone(),
            sharers: BTreeSet::new(),
            scheduler,
            node: node.to_owned(),
            uid: 0,
            prefix: drain_prefix(settings),
            slurm_conf: None,
            gpus: Vec::new(),
        }
    }

    /// `job 12`, or as many as fit into a reason: `jobs 12, 13`.
    pub fn jobs(&self) -> String {
        let shown = self.sharers.iter().take(MOST_NAMED);
        let shown: Vec<&str> = shown.map(JobId::as_str).collect();
        match self.sharers.len().saturating_sub(shown.len()) {
            _ if shown.len() < 2 => format!("job {}", shown.first().unwrap_or(&self.job.as_str())),
            0 => format!("jobs {}", shown.join(", ")),
            more => format!("jobs {} and {more} more", shown.join(", ")),
        }
    }
}

pub(super) fn drain_prefix(settings: &Settings) -> Option<String> {
    settings.drain.enabled.then(|| drain::PREFIX.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_names_so_many_jobs_as_its_reason_has_room_for() {
        let job = |number: u32| JobId::parse(&number.to_string()).unwrap();
        let named = |numbers: std::ops::Range<u32>| {
            let target = DrainTarget {
                sharers: numbers.map(job).collect(),
                ..DrainTarget::new(&job(1), Scheduler::Slurm, "n1", &Settings::usual())
            };
            target.jobs()
        };
        assert_eq!(named(0..0), "job 1");
        assert_eq!(named(7..8), "job 7");
        assert_eq!(named(11..13), "jobs 11, 12");
        let some = "jobs 11, 12, 13, 14, 15, 16, 17, 18";
        assert_eq!(named(11..19), some);
        assert_eq!(named(11..71), format!("{some} and 52 more"));
    }
}
