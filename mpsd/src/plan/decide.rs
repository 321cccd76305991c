//! From what was written to what is done: the settings of the node with its GPUs, defaults and ceilings, the plan.

use super::{Case, gpus, plan, tasks_per_gpu};
use crate::plan::effects::Plan;
use crate::scheduler::{Devices, Submission};
use mpsd_core::config::{Asker, Config, Settings};
use mpsd_core::request::Wording;
use mpsd_core::{Failure, Fault, Inventory, Request};

/// A request as written, with all that decides on it.
#[derive(Debug, Clone, Copy)]
pub struct Written<'a> {
    /// The site's file.
    pub config: &'a Config,
    /// The node's name in the scheduler.
    pub node: &'a str,
    /// The job.
    pub submission: &'a Submission,
    /// Its user.
    pub uid: u32,
    /// What it asked for.
    pub request: &'a Request,
    /// How the user wrote it.
    pub wording: Wording,
    /// What the scheduler gave.
    pub devices: &'a Devices,
    /// What the node has.
    pub inventory: &'a Inventory,
}

/// The settings in force for a node with these GPUs, and the plan under them.
///
/// # Errors
/// A fault for an unusable configuration; else as [`plan`].
pub fn decide(written: &Written<'_>) -> Result<(Settings, Plan), Failure> {
    let products: Vec<&str> = written
        .inventory
        .gpus
        .iter()
        .map(|gpu| gpu.name.as_str())
        .collect();
    let settings = written
        .config
        .for_node(written.node, &products)
        .map_err(Fault::from)?;
    let rules = (&settings).into();
    let gpus = gpus::of_job(written.devices, written.inventory, rules)?;
    let tasks = tasks_per_gpu(written.devices, gpus.len());
    let asker = Asker {
        gpus: &gpus,
        tasks,
        wording: written.wording,
    };
    let request = settings.resolve(written.request, &asker)?;
    let case = Case {
        job: &written.submission.job,
        uid: written.uid,
        step: written.submission.step,
        request: &request,
        devices: written.devices,
        inventory: written.inventory,
        rules,
    };
    let plan = plan(&case)?;
    Ok((settings, plan))
}
