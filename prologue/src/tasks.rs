//! A job whose tasks could run outside its MPS without a word.

use crate::NAME;
use crate::job::Job;
use mpsd::cli::complain;
use mpsd::node::log::{Severity, line};
use mpsd::plan;
use mpsd::scheduler::{self, Input, ThisHost};
use mpsd_core::Failure;
use std::path::{Path, PathBuf};

/// Refuses a job whose TM tasks nothing of ours attaches, or says so in the job's own error file, as the site wants.
///
/// # Errors
/// As [`plan::tasks::decide`].
pub fn check(input: &Input<'_>, job: &Job) -> Result<(), Failure> {
    let submission = &job.asked.submission;
    let mut input = input.clone();
    input.site = job.site();
    if input.site.home.is_none() {
        input.site.home = home_of_caller();
    }
    let missing = scheduler::unattached(submission, &input, &ThisHost);
    if let Some(told) = plan::tasks::decide(missing, submission.phase, job.settings.pbs.unattached_tasks)? {
        let text = format!("job {}: {told}", submission.job);
        line(NAME, Severity::Warning, &text);
        complain(NAME, &text);
    }
    Ok(())
}

/// The home of the mom that runs us, whose prologue starts in its `mom_priv` (facts: pbs-live, "Environment, identity,
/// stdio").
fn home_of_caller() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    (here.file_name()? == "mom_priv").then(|| here.parent().map(Path::to_path_buf))?
}
