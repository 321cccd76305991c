//! Did the job ask for MPS? Decided before anything is read or touched.

use crate::arguments::Arguments;
use mpsd::model::request::Wording;
use mpsd::model::{Failure, Request};
use mpsd::scheduler::{self, Host, Input, Scheduler, Submission};

/// A job that asked.
#[derive(Debug, Clone)]
pub struct Asked {
    /// What it asked for, as written.
    pub request: Request,
    /// How the user wrote it, for messages.
    pub wording: Wording,
    /// What the scheduler says of it.
    pub submission: Submission,
}

/// The job's request; `None`: it did not ask, or switched MPS off.
///
/// # Errors
/// A refusal for what it asked; undetermined when the scheduler called us with a vector that it never uses.
pub fn asked(arguments: &Arguments, input: &Input<'_>, host: &dyn Host) -> Result<Option<Asked>, Failure> {
    let mut submission = scheduler::read(input, host)?;
    if let Some(step) = arguments.step.as_deref().filter(|_| !submission.step) {
        submission.job = submission.job.step(step)?;
        submission.step = true;
    }
    let request = written(arguments, &submission)?;
    let wording =
        if submission.scheduler == Scheduler::Slurm { Wording::Options } else { Wording::Account };
    Ok(request.filter(Request::is_on).map(|request| Asked { request, wording, submission }))
}

fn written(arguments: &Arguments, submission: &Submission) -> Result<Option<Request>, Failure> {
    let given = match &arguments.request {
        Some(text) => Request::from_account(text)?,
        None => None,
    };
    let account = match &submission.account {
        Some(account) => Request::from_account_bytes(account)?,
        None => None,
    };
    let resource = match &submission.resource {
        Some(resource) => Some(Request::from_resource(resource)?),
        None => None,
    };
    let mut all = [given, account, resource].into_iter().flatten();
    let Some(first) = all.next() else { return Ok(None) };
    Ok(Some(all.try_fold(first, Request::merge)?))
}
