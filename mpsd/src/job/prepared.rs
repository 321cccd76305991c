//! A job before its start.

use super::drain_target::DrainTarget;
use crate::plan::{Asked, Case};
use batch::drain::Place;
use batch::{Devices, Location, Submission, Unattached};
use mpsd_core::config::Settings;
use mpsd_core::{Failure, Inventory};
use mpsd_sys::deadline::Deadline;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
}

/// All that is known of a job before its GPUs are looked at.
#[derive(Debug, Clone)]
pub struct Job {
    pub submission: Submission,
    pub asked: Asked,
    pub settings: Settings,
    pub user: User,
    pub node: String,
    pub location: Location,
    /// A failure is left on the node for the job's tasks.
    pub tells_tasks: bool,
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
        let submission = &self.submission;
        let (job, scheduler) = (&submission.job, submission.scheduler);
        DrainTarget {
            uid: self.user.uid,
            slurm_conf: self.location.slurm_conf.clone(),
            gpus,
            ..DrainTarget::new(job, scheduler, &self.node, &self.settings)
        }
    }
}

pub trait Scheduled {
    /// If it is on this node already.
    fn script(&self) -> Option<String> {
        None
    }
    fn unattached(&self) -> Option<Unattached>;
    /// On this node ([`batch::devices()`]).
    fn devices(&self) -> Result<Devices, Failure>;
}
