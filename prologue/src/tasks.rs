//! A job whose tasks could run outside its MPS without a word.

use crate::NAME;
use crate::job::Job;
use mpsd::cli::complain;
use mpsd::config::UnattachedTasks;
use mpsd::model::Failure;
use mpsd::model::failure::{Evidence, Fault, Refusal};
use mpsd::node::log::{Severity, line};
use mpsd::scheduler::{self, Input, Phase, ThisHost};
use std::path::{Path, PathBuf};

/// Refuses a job whose TM tasks nothing of ours attaches, or says so in the job's own error file, as the site wants.
///
/// # Errors
/// A refusal on the job's first node, where its user reads it. On a Torque sister it is the configuration's fault: a
/// sister has nobody to tell, and tasks that TM starts there would run bare.
pub fn check(input: &Input<'_>, job: &Job) -> Result<(), Failure> {
    let submission = &job.asked.submission;
    let mut input = input.clone();
    input.site = job.site();
    if input.site.home.is_none() {
        input.site.home = home_of_caller();
    }
    let Some(missing) = scheduler::unattached(submission, &input, &ThisHost) else {
        return Ok(());
    };
    let id = &submission.job;
    if missing.no_daemon || job.settings.pbs.unattached_tasks == UnattachedTasks::Refuse {
        if submission.phase == Phase::ParallelPrologue {
            let why = format!("{}; it needs {}", missing.why, missing.mend);
            return Err(Fault::new(Evidence::Configuration, "tasks started by TM", why).into());
        }
        let allowed = format!("after {}", missing.mend);
        return Err(Refusal::new("MPS", missing.why, allowed).into());
    }
    let text = format!(
        "job {id}: {}: such a task runs outside MPS unless it is 'mpsctl exec -- COMMAND'",
        missing.why
    );
    line(NAME, Severity::Warning, &text);
    complain(NAME, &text);
    Ok(())
}

/// The home of the mom that runs us, whose prologue starts in its `mom_priv` (facts: pbs-live, "Environment, identity,
/// stdio").
fn home_of_caller() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    (here.file_name()? == "mom_priv").then(|| here.parent().map(Path::to_path_buf))?
}
