//! A job whose tasks could run outside its MPS without a word.

use crate::NAME;
use crate::job::Job;
use mpsd::cli::complain;
use mpsd::config::UnattachedTasks;
use mpsd::model::Failure;
use mpsd::model::failure::{Evidence, Fault, Refusal};
use mpsd::node::log::{Severity, line};
use mpsd::scheduler::{self, Input, Phase, ThisHost};

/// Refuses a job whose TM tasks nothing of ours attaches, or says so in the job's own error file, as the site wants.
///
/// # Errors
/// A refusal on the job's first node, where its user reads it. On a Torque sister it is the configuration's fault: a
/// sister has nobody to tell, and tasks that TM starts there would run bare.
pub fn check(input: &Input<'_>, job: &Job) -> Result<(), Failure> {
    let submission = &job.asked.submission;
    let mut input = input.clone();
    input.site = job.site();
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
