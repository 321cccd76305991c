//! The job's directories on this node, and their end.

use crate::NAME;
use mpsd::cli::complain;
use mpsd::node::clean::{self, By};
use mpsd::scheduler::{Scheduler, Submission};
use mpsd::sys::deadline::Deadline;
use mpsd_core::config::Settings;
use mpsd_core::paths::JobPaths;
use mpsd_core::{JobId, Paths};
use std::path::Path;

/// The job, and in Slurm its steps with daemons of their own, as far as they have a directory here.
pub fn jobs_of(paths: &Paths, submission: &Submission) -> Vec<JobId> {
    let mut jobs: Vec<JobId> = Vec::new();
    let there = |path: &Path| path.symlink_metadata().is_ok();
    let lock = paths.jobs().join(JobPaths::lock_name(&submission.job));
    if there(paths.job(&submission.job).directory()) || there(&lock) {
        jobs.push(submission.job.clone());
    }
    if submission.scheduler == Scheduler::Slurm && !submission.step {
        let names = std::fs::read_dir(paths.jobs()).into_iter().flatten().flatten();
        let ids = names.filter_map(|entry| JobId::parse(entry.file_name().to_str()?).ok());
        jobs.extend(ids.filter(|id| *id != submission.job && id.belongs_to(&submission.job)));
    }
    jobs
}

/// Takes down one job; true when the node is as it was before.
pub fn job(
    job: &JobId,
    settings: &Settings,
    submission: &Submission,
    name: &str,
    deadline: Deadline,
) -> bool {
    let scheduler = submission.scheduler;
    let slurm_conf = std::env::var("SLURM_CONF").ok();
    let ended = clean::job(
        job,
        &By {
            program: NAME,
            settings,
            scheduler,
            node: name,
            slurm_conf,
            deadline,
        },
    );
    ended.lines.iter().for_each(|line| complain(NAME, line));
    ended.clean
}
