//! Bounds for the daemons of steps. The job's own limits do not hold them, and each step would have
//! the ceilings of a whole job.

use super::node::Node;
use super::prepared::Job;
use super::store::Store as _;
use mpsd_core::record::RecordState;
use mpsd_core::{Failure, JobId, Refusal};

/// The most steps of a job that have an MPS of their own on a node at once. No node has more GPUs.
const OF_A_JOB: usize = 16;
const OF_A_USER: usize = 64;

/// The step's own record is written already and counts, so steps that start at once cannot pass the
/// limit.
pub(super) fn expect_few_steps(node: &mut impl Node, job: &Job) -> Result<(), Failure> {
    if !job.submission.step {
        return Ok(());
    }
    let whole = job.submission.job.whole();
    let names = node.job_directories()?;
    let ids = names.iter().filter_map(|name| JobId::parse(name).ok());
    // The record of a step without MPS stays as well, for its tasks.
    let has_mps = |state| matches!(state, RecordState::Starting | RecordState::Ready);
    let mut steps = Vec::new();
    for step in ids.filter(|id| id.whole() != *id) {
        let record = node.look_at_record(&step)?;
        if record.is_some_and(|record| record.uid == job.user.uid && has_mps(record.state)) {
            steps.push(step);
        }
    }
    let of_job = steps.iter().filter(|step| step.belongs_to(&whole)).count();
    let why = match (of_job > OF_A_JOB, steps.len() > OF_A_USER) {
        (false, false) => return Ok(()),
        (true, _) => format!("{OF_A_JOB} of its steps have one on this node already"),
        (false, true) => format!("{OF_A_USER} steps of your jobs have one on this node already"),
    };
    let what = format!("an MPS of this step's own in job {whole}");
    let allowed = "steps of a job that itself asks with --mps: they share one";
    Err(Refusal::new(what, why, allowed).into())
}
