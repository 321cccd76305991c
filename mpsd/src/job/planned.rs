//! The plan of a start, and what keeps a node or a job from one.

use super::case::{Job, Scheduled};
use super::evidence;
use super::ledger::{self, Ledger, PAUSE_S};
use super::node::{Node, Severity};
use super::outcome;
use super::shared;
use crate::plan::auto;
use crate::plan::effects::Plan;
use crate::plan::{decide, tasks};
use mpsd_core::config::Settings;
use mpsd_core::failure::Undetermined;
use mpsd_core::record::Record;
use mpsd_core::script;
use mpsd_core::{Failure, GpuUuid, Inventory};

/// Makes the plan for these GPUs.
pub(super) type Decide<'a> = Box<dyn Fn(&Inventory) -> Result<(Settings, Plan), Failure> + 'a>;

/// A start planned with the GPUs in the ledger. NVML confirms them while the control daemon comes
/// up, or before a shared MPS is begun.
pub(super) struct Supposed<'a> {
    pub job: &'a Job,
    pub known: Inventory,
    pub again: Decide<'a>,
}

impl Supposed<'_> {
    /// The plan that NVML's answer leads to. It is asked for the GPUs of this plan alone, unless
    /// they have changed.
    pub fn plan_again(
        &self,
        node: &mut impl Node,
        plan: &Record,
    ) -> Result<(Settings, Plan), Failure> {
        let now = node.inventory_again(&self.known, &uuids(plan))?;
        remember(node, self.job, &now);
        (self.again)(&now)
    }
}

/// The settings and the plan. If NVML has not been asked yet, also how to make the plan again.
pub(super) fn make_plan<'a>(
    node: &mut impl Node,
    job: &'a Job,
    scheduled: &impl Scheduled,
) -> Result<(Settings, Plan, Option<Supposed<'a>>), Failure> {
    expect_healthy_node(node, job)?;
    expect_attached_tasks(node, job, scheduled)?;
    let devices = scheduled.devices()?;
    let script = (!job.by_site).then(|| scheduled.script()).flatten();
    let decide: Decide<'a> = Box::new(move |inventory: &Inventory| {
        let (settings, mut plan) = decide(&job.case(&devices, inventory))?;
        let advice = script
            .as_ref()
            .map(|script| script::advice(script, &plan.record));
        let advice = advice
            .into_iter()
            .flatten()
            .map(|line| format!("warning: {line}"));
        plan.record.warnings.extend(advice);
        Ok((settings, plan))
    });
    let known = Ledger::read(node).gpus;
    let known = known.and_then(|known| Some((decide(&known).ok()?, known)));
    // A job that only joins needs no NVML, which takes longer to load than all the rest.
    let joins = known
        .as_ref()
        .is_some_and(|((_, plan), _)| shared::are_up(node, plan));
    if !joins {
        let gpus = known.as_ref().map(|((_, plan), _)| uuids(&plan.record));
        node.prepare_nvml(&gpus.unwrap_or_default());
    }
    let (settings, plan, supposed) = match known {
        Some(((settings, plan), known)) if joins || plan.shared.is_empty() => {
            let again = decide;
            (settings, plan, Some(Supposed { job, known, again }))
        }
        _ => {
            let (settings, plan) = decide(&look_at_gpus(node, job)?)?;
            (settings, plan, None)
        }
    };
    node.check_control(&settings.control)?;
    Ok((settings, plan, supposed))
}

fn uuids(plan: &Record) -> Vec<GpuUuid> {
    plan.gpus.iter().map(|gpu| gpu.uuid.clone()).collect()
}

/// Asks NVML, and keeps the answer for later starts unless this is a step's. slurmstepd is inside
/// the device limits of its job (docs/facts/slurm.md#callbacks-of-a-plugin), where NVML may list
/// that job's GPUs alone, counted from 0.
fn look_at_gpus(node: &mut impl Node, job: &Job) -> Result<Inventory, Failure> {
    let inventory = node.inventory()?;
    remember(node, job, &inventory);
    Ok(inventory)
}

fn remember(node: &mut impl Node, job: &Job, inventory: &Inventory) {
    if !job.submission.step {
        ledger::remember_gpus(node, inventory);
    }
}

/// No job with MPS begins while a second look at this node is due, or while its scheduler has not
/// got a drain.
fn expect_healthy_node(node: &mut impl Node, job: &Job) -> Result<(), Undetermined> {
    for line in evidence::look_again(node, &job.settings) {
        outcome::say_of_node(node, job, &line);
    }
    let why = match Ledger::read(node).suspicions.first() {
        Some(suspicion) => format!(
            "since {} {} hangs in the driver: looked at again {PAUSE_S} s after",
            suspicion.target.jobs(),
            suspicion.what
        ),
        None => match node.undelivered(&job.node) {
            None => return Ok(()),
            Some(reason) => format!("a drain of this node waits for its scheduler ({reason})"),
        },
    };
    Err(Undetermined::new(format!("node '{}'", job.node), why))
}

/// Refuses a job with TM tasks that would run outside its MPS, or warns in the job's own error
/// file, as the site wants.
fn expect_attached_tasks(
    node: &mut impl Node,
    job: &Job,
    scheduled: &impl Scheduled,
) -> Result<(), Failure> {
    let submission = &job.submission;
    let rule = job.settings.pbs.unattached_tasks;
    // A job that may do without MPS needs no warning.
    let sister = submission.sister && !auto::may_do_without(&job.request);
    if let Some(told) = tasks::decide(scheduled.unattached(), sister, rule)? {
        let text = format!("job {}: {told}", submission.job);
        node.log(Severity::Warning, &text);
        if !job.by_site {
            node.complain(&text);
        }
    }
    Ok(())
}
