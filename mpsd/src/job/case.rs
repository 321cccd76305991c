//! A job before its start: all that is known of it then.

use crate::plan::effects::{Effect, Plan};
use crate::scheduler::drain::Place;
use crate::scheduler::{Devices, GpuSource, Site, Submission, Unattached};
use crate::sys::deadline::Deadline;
use mpsd_core::config::{Config, Settings};
use mpsd_core::record::{self, Record, RecordState};
use mpsd_core::request::Syntax;
use mpsd_core::{Failure, Inventory, Request};

/// A user of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Login name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
}

/// A job that asked, with all that is known before its GPUs are looked at.
#[derive(Debug, Clone)]
pub struct Job {
    /// What the scheduler says of it.
    pub submission: Submission,
    /// What its user asked for, as written.
    pub request: Request,
    /// How the user wrote it, for messages.
    pub syntax: Syntax,
    /// The file with the settings.
    pub config: Config,
    /// What is in force on this node, before its GPUs are known.
    pub settings: Settings,
    /// Its user.
    pub user: User,
    /// The node's name in the scheduler.
    pub node: String,
    /// Where its scheduler lives.
    pub site: Site,
    /// A refusal or a failure is left on the node for the job's tasks to read.
    pub record: bool,
    /// The whole start must have ended by then.
    pub deadline: Deadline,
}

impl Job {
    /// Its node in the scheduler.
    pub fn place(&self) -> Place<'_> {
        Place {
            scheduler: self.submission.scheduler,
            site: self.site.clone(),
            node: &self.node,
        }
    }

    /// What its tasks are told while it starts.
    pub fn record(
        &self,
        settings: &Settings,
        plan: &Plan,
        devices: &Devices,
        inventory: &Inventory,
    ) -> Record {
        // Without CUDA_DEVICE_ORDER, CUDA counts the fastest first.
        let alike = inventory.gpus.windows(2).all(|pair| pair[0].name == pair[1].name);
        let exclusive = |effect: &Effect| matches!(effect, Effect::SetComputeMode { .. });
        Record {
            version: record::VERSION,
            job: plan.job.clone(),
            uid: self.user.uid,
            state: RecordState::Starting,
            reason: None,
            kind: None,
            of_node: false,
            exclusive: plan.effects.iter().any(exclusive),
            deadline_s: u32::try_from(settings.deadline.as_secs()).unwrap_or(u32::MAX),
            per_gpu: plan.per_gpu,
            request: Some(self.request.clone()),
            named: matches!(devices.gpus, GpuSource::Listed(_) | GpuSource::Numbered(_)),
            gpus: plan.gpus.clone(),
            devices: devices.gpus.to_count(inventory),
            daemons: plan.daemons.clone(),
            rank_threads: plan.rank_threads.clone(),
            rank_memory: plan.rank_memory.clone(),
            divided: plan.divided,
            names: Some(plan.names),
            same_numbers: plan.gpus.iter().zip(0..).all(|(gpu, place)| gpu.index == place) && alike,
            bind: Some(plan.bind),
            clients: plan.clients,
            warnings: plan.warnings.clone(),
            report: plan.report,
        }
    }
}

/// What the scheduler says of the job's tasks and devices when it is asked.
pub trait Scheduled {
    /// Why tasks of the job could run outside its MPS, if they could.
    fn unattached(&self) -> Option<Unattached>;
    /// Its GPUs and tasks on this node.
    ///
    /// # Errors
    /// As [`crate::scheduler::devices()`].
    fn devices(&self) -> Result<Devices, Failure>;
}
