//! A job before its start: all that is known of it then.

use crate::plan::{Asked, Case};
use batch::drain::Place;
use batch::{Devices, Location, Submission, Unattached};
use mpsd_core::config::Settings;
use mpsd_core::{Failure, Inventory, JobId, Scheduler};
use mpsd_sys::deadline::Deadline;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Most jobs that a drain's reason names. Slurm shows 400 characters of it.
const MOST_NAMED: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
}

/// A job's node in its scheduler, and how it is drained: as configured when the job began.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DrainTarget {
    /// The job, or the shared MPS.
    pub job: JobId,
    /// The jobs that shared that MPS. A drain names them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub sharers: BTreeSet<JobId>,
    pub scheduler: Scheduler,
    pub node: String,
    pub uid: u32,
    /// What a drain's reason begins with; `None` if the site drains nothing.
    pub prefix: Option<String>,
    /// `SLURM_CONF`, if the job's environment named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_conf: Option<String>,
    pub gpus: Vec<String>,
}

impl DrainTarget {
    /// `job 12`, or the jobs that shared the MPS, as many as fit into a reason: `jobs 12, 13`.
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
    let drain = &settings.drain;
    drain.enabled.then(|| drain.prefix.clone())
}

/// A job that is to get MPS, by its user's request or its site's, with all that is known before its
/// GPUs are looked at.
#[derive(Debug, Clone)]
pub struct Job {
    pub submission: Submission,
    pub asked: Asked,
    /// The file of the settings.
    pub config: PathBuf,
    pub settings: Settings,
    pub user: User,
    pub node: String,
    pub location: Location,
    /// Whether a refusal or a failure is written to the record, for the job's tasks.
    pub record: bool,
    /// The whole start must have ended by then.
    pub deadline: Deadline,
}

impl Job {
    pub fn place(&self) -> Place<'_> {
        Place {
            scheduler: self.submission.scheduler,
            location: self.location.clone(),
            node: &self.node,
        }
    }

    pub fn case<'a>(&'a self, devices: &'a Devices, inventory: &'a Inventory) -> Case<'a> {
        Case {
            settings: &self.settings,
            submission: &self.submission,
            asked: &self.asked,
            uid: self.user.uid,
            devices,
            inventory,
        }
    }

    pub fn drain_target(&self, gpus: Vec<String>) -> DrainTarget {
        DrainTarget {
            job: self.submission.job.clone(),
            sharers: BTreeSet::new(),
            scheduler: self.submission.scheduler,
            node: self.node.clone(),
            uid: self.user.uid,
            prefix: drain_prefix(&self.settings),
            slurm_conf: self.location.slurm_conf.clone(),
            gpus,
        }
    }
}

/// What the scheduler says of the job's tasks and devices when it is asked.
pub trait Scheduled {
    /// Its batch script, if it is on this node already.
    fn script(&self) -> Option<String> {
        None
    }
    /// Why tasks of the job could run outside its MPS, if they could.
    fn unattached(&self) -> Option<Unattached>;
    /// Its GPUs and tasks on this node ([`batch::devices()`]).
    fn devices(&self) -> Result<Devices, Failure>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_names_so_many_jobs_as_its_reason_has_room_for() {
        let job = |number: u32| JobId::parse(&number.to_string()).unwrap();
        let named = |numbers: std::ops::Range<u32>| {
            let target = DrainTarget {
                job: job(1),
                sharers: numbers.map(job).collect(),
                scheduler: Scheduler::Slurm,
                node: String::new(),
                uid: 0,
                prefix: None,
                slurm_conf: None,
                gpus: Vec::new(),
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
