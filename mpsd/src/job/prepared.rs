//! A job before its start: all that is known of it then.

use super::drain_target::{DrainTarget, drain_prefix};
use crate::plan::{Asked, Case};
use batch::drain::Place;
use batch::{Devices, Location, Submission, Unattached};
use mpsd_core::config::Settings;
use mpsd_core::{Failure, Inventory};
use mpsd_sys::deadline::Deadline;
use std::collections::BTreeSet;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
}

/// A job that is to get MPS, by its user's request or its site's, with all that is known before its
/// GPUs are looked at.
#[derive(Debug, Clone)]
pub struct Job {
    pub submission: Submission,
    pub asked: Asked,
    pub settings: Settings,
    pub user: User,
    pub node: String,
    pub location: Location,
    /// Whether a refusal or a failure is written to the record, for the job's tasks.
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
