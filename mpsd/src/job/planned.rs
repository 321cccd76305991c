//! The plan of a start, and what keeps a node or a job from one.

use super::evidence;
use super::ledger::{self, Ledger, PAUSE_S};
use super::node::{Node, Severity};
use super::outcome;
use super::prepared::{Job, Scheduled};
use super::shared;
use crate::plan::auto;
use crate::plan::effects::Plan;
use crate::plan::{decide, tasks};
use mpsd_core::failure::Undetermined;
use mpsd_core::script;
use mpsd_core::{Failure, Inventory};

/// With the ledger NVML looks at the job's GPUs alone.
pub(super) fn make_plan(
    node: &mut impl Node,
    job: &Job,
    scheduled: &impl Scheduled,
) -> Result<Plan, Failure> {
    expect_healthy_node(node, job)?;
    expect_attached_tasks(node, job, scheduled)?;
    let devices = scheduled.devices()?;
    let plan_for = |inventory: &Inventory| decide(&job.case(&devices, inventory));
    let known = Ledger::read(node).gpus;
    let known = known.and_then(|known| Some((plan_for(&known).ok()?, known)));
    let mut plan = match known {
        // NVML takes longer to load than all the rest of a join.
        Some((plan, _)) if shared::are_up(node, &plan) => plan,
        known => {
            let known = known.map(|(plan, known)| (known, plan.record.gpu_uuids()));
            let now = node.inventory(known)?;
            // In slurmstepd NVML may list the job's GPUs alone, counted from 0
            // (docs/facts/slurm.md#callbacks-of-a-plugin).
            if !job.submission.step {
                ledger::remember_gpus(node, &now);
            }
            plan_for(&now)?
        }
    };
    if let Some(script) = (!job.asked.by_site).then(|| scheduled.script()).flatten() {
        let advice = script::advice(&script, &plan.record).into_iter();
        let advice = advice.map(|line| format!("warning: {line}"));
        plan.record.warnings.extend(advice);
    }
    node.check_control(&job.settings.control)?;
    Ok(plan)
}

/// No job with MPS begins while a second look is due, or the scheduler has not got a drain.
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

/// TM tasks would run outside the job's MPS: the site wants a refusal, or a warning.
fn expect_attached_tasks(
    node: &mut impl Node,
    job: &Job,
    scheduled: &impl Scheduled,
) -> Result<(), Failure> {
    let submission = &job.submission;
    let rule = job.settings.pbs.unattached_tasks;
    // Refused, a job that may do without MPS runs without it.
    let sister = submission.sister && !auto::may_do_without(&job.asked.request);
    if let Some(told) = tasks::decide(scheduled.unattached(), sister, rule)? {
        let text = format!("job {}: {told}", submission.job);
        node.log(Severity::Warning, &text);
        if !job.asked.by_site {
            node.complain(&text);
        }
    }
    Ok(())
}
