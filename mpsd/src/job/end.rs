//! The end of a job, whoever asks for it: the epilogue when the job has ended, or `mpsctl reconcile` when the scheduler
//! has forgotten it. The journal backwards, the log lines, the drain on proof.

use super::evidence;
use super::journal::Journal;
use super::node::{Node, Severity};
use super::outcome;
use super::suspicion::At;
use super::undo::{self, Findings};
use crate::scheduler::drain::Place;
use crate::scheduler::{self, Scheduler, Site, Submission};
use mpsd_core::config::Settings;
use mpsd_core::{Failure, JobId};

/// Where a job ends, and what is in force.
#[derive(Debug, Clone)]
pub struct Ending<'a> {
    /// What is in force on the node; the job's journal goes before it.
    pub settings: &'a Settings,
    /// Whose job it is.
    pub scheduler: Scheduler,
    /// The node's name in the scheduler.
    pub node: &'a str,
    /// Where its scheduler lives.
    pub site: Site,
}

/// What became of it.
#[derive(Debug, Default)]
pub struct Ended {
    /// What the teardown found; clean: the node is as it was before the job.
    pub findings: Findings,
    /// What an administrator reads on standard error; it stands in the node's log as well.
    pub lines: Vec<String>,
}

/// The job, and its steps with daemons of their own, as far as something of them is here.
pub fn jobs_of(node: &impl Node, submission: &Submission) -> Vec<JobId> {
    let own = &submission.job;
    let mut jobs = Vec::new();
    if node.has_directory(own) || node.has_lock(own) {
        jobs.push(own.clone());
    }
    if scheduler::of(submission.scheduler).has_steps() && !submission.step {
        let names = node.job_directories().unwrap_or_default();
        let ids = names.iter().filter_map(|name| JobId::parse(name).ok());
        jobs.extend(ids.filter(|id| id != own && id.belongs_to(own)));
    }
    jobs
}

/// Takes `job` down. Costs nothing where it has no directory.
pub fn end(node: &mut impl Node, job: &JobId, ending: &Ending<'_>) -> Ended {
    end_if(node, job, ending, |_| true)
}

/// Takes `job` down if its journal is still `judged`: a job that the scheduler started anew under the same id since then
/// is another one.
pub fn end_as_judged(
    node: &mut impl Node,
    job: &JobId,
    ending: &Ending<'_>,
    judged: Option<&Journal>,
) -> Ended {
    end_if(node, job, ending, |journal| journal == judged)
}

fn end_if(
    node: &mut impl Node,
    job: &JobId,
    ending: &Ending<'_>,
    meant: impl Fn(Option<&Journal>) -> bool,
) -> Ended {
    let mut findings = Findings::default();
    let journal = match take_down(node, job, meant, &mut findings) {
        Ok(Some(journal)) => journal,
        Ok(None) => return Ended::default(),
        Err(failure) => {
            findings.take(Err(failure));
            None
        }
    };
    if let Some(journal) = &journal {
        evidence::of_silent_nvml(node, At::end(journal));
    }
    let mut lines = report(node, job, &findings);
    lines.extend(drain(node, job, ending, journal.as_ref(), &findings));
    Ended { findings, lines }
}

/// A start of the job that is still under way, stopped by its user say, is told to give up; where the prologue has returned,
/// the process that goes on alone is ended, and its lock is free.
fn cancel_start(
    node: &mut impl Node,
    job: &JobId,
    meant: impl Fn(Option<&Journal>) -> bool,
) -> Result<(), Failure> {
    if !node.is_held(job) {
        return Ok(());
    }
    // Whole without the lock: a journal is replaced in one step.
    let journal = node.read_journal(job)?;
    if !meant(journal.as_ref()) {
        return Ok(());
    }
    node.cancel(job)?;
    if let Some(starter) = journal.and_then(|journal| journal.starter) {
        node.end_starter(starter);
    }
    Ok(())
}

/// The order of an end. `None`: nothing of the job is here, or another one of its id; `Some(None)`: it had no journal.
fn take_down(
    node: &mut impl Node,
    job: &JobId,
    meant: impl Fn(Option<&Journal>) -> bool,
    findings: &mut Findings,
) -> Result<Option<Option<Journal>>, Failure> {
    cancel_start(node, job, &meant)?;
    let Some(_held) = node.find_job(job)? else {
        return Ok(None);
    };
    let journal = node.read_journal(job)?;
    if !meant(journal.as_ref()) {
        return Ok(None);
    }
    match &journal {
        // A refusal's or a failure's record, or a prologue killed before its first effect.
        None => node.remove_job(job)?,
        Some(journal) => {
            node.use_nvml(&journal.nvml);
            *findings = undo::undo(node, journal);
        }
    }
    Ok(Some(journal))
}

fn report(node: &mut impl Node, job: &JobId, findings: &Findings) -> Vec<String> {
    for note in &findings.notes {
        node.log(Severity::Info, &format!("job {job}: {note}"));
    }
    let mut lines = Vec::new();
    for unknown in &findings.undetermined {
        let text = format!("job {job}: {unknown}");
        node.log(Severity::Warning, &format!("undetermined: {text}"));
        lines.push(text);
    }
    for fault in &findings.faults {
        let text = format!("job {job}: {fault}");
        node.log(Severity::Error, &format!("fault: {text}"));
        lines.push(text);
    }
    if findings.is_clean() {
        let line = format!("job {job}: MPS ended, the node is as it was");
        node.log(Severity::Info, &line);
    }
    lines
}

/// Drains as configured when the job began: the configuration may be gone.
fn drain(
    node: &mut impl Node,
    job: &JobId,
    ending: &Ending<'_>,
    journal: Option<&Journal>,
    findings: &Findings,
) -> Option<String> {
    let settings = ending.settings;
    let (enabled, prefix) = match journal {
        Some(journal) => (journal.drain.enabled, &journal.drain.prefix),
        None => (settings.drain.enabled, &settings.drain.prefix),
    };
    let mut site = ending.site.clone();
    site.slurm_conf = site.slurm_conf.or_else(|| journal?.drain.slurm_conf.clone());
    let place = Place {
        scheduler: ending.scheduler,
        site,
        node: ending.node,
    };
    let gpus = journal.map(Journal::gpu_names).unwrap_or_default();
    let prefix = enabled.then_some(prefix.as_str());
    outcome::drain(node, &place, prefix, job, findings.faults.iter(), gpus).map(|(line, _)| line)
}
