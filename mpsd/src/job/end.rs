//! The end of a job: undo the journal, write the log lines, drain on proof.

use super::audit;
use super::drain_target::DrainTarget;
use super::evidence;
use super::findings::Findings;
use super::journal::Journal;
use super::node::{Node, Severity};
use super::report::{self, JobOutcome, JobReport};
use super::store::Store as _;
use super::undo;
use crate::plan::effects::Effect;
use batch::{Location, Scheduler, Submission};
use mpsd_core::config::Settings;
use mpsd_core::killed::KilledTask;
use mpsd_core::observations::Observations;
use mpsd_core::{Failure, JobId};
use mpsd_sys::now;
use std::time::{Duration, Instant};

#[derive(Debug, Clone)]
pub struct Ending<'a> {
    /// In force on the node; the job's journal wins.
    pub settings: &'a Settings,
    pub scheduler: Scheduler,
    pub node: &'a str,
}

#[derive(Debug, Default)]
pub struct JobEnd {
    pub findings: Findings,
    /// For standard error; they stand in the node's log as well.
    pub lines: Vec<String>,
    /// For a scheduler that shows an epilogue's output to the user.
    pub last_words: Vec<String>,
    /// If its user asked to read it.
    pub report: Option<JobReport>,
    pub summary: Option<String>,
    /// The job's site brought it in, so its own output has none of all this.
    pub by_site: bool,
}

/// The job, and its steps with daemons of their own.
pub fn jobs_of(node: &impl Node, submission: &Submission) -> Vec<JobId> {
    let own = &submission.job;
    let mut jobs = Vec::new();
    if node.has_directory(own) || node.has_lock(own) {
        jobs.push(own.clone());
    }
    if batch::of(submission.scheduler).facts().has_steps && !submission.step {
        let names = node.job_directories().unwrap_or_default();
        let ids = names.iter().filter_map(|name| JobId::parse(name).ok());
        jobs.extend(ids.filter(|id| id != own && id.belongs_to(own)));
    }
    jobs
}

pub fn end(node: &mut impl Node, job: &JobId, ending: &Ending<'_>) -> JobEnd {
    end_if(node, job, ending, |_| true)
}

/// Ends `job` if its journal is `meant`: the scheduler may have started another job under its id.
pub fn end_if(
    node: &mut impl Node,
    job: &JobId,
    ending: &Ending<'_>,
    meant: impl Fn(Option<&Journal>) -> bool,
) -> JobEnd {
    let began = Instant::now();
    let mut findings = Findings::default();
    let mut by_site = false;
    let (journal, observed, killed) = match take_down(node, job, meant, &mut findings) {
        Ok(Some(found)) => found,
        Ok(None) => return JobEnd::default(),
        Err(failure) => {
            findings.take(Err(failure));
            let record = node.read_record(job);
            by_site = record.is_some_and(|record| record.by_site.is_some());
            JobFiles::default()
        }
    };
    let took = began.elapsed();
    let last_words = observed
        .as_ref()
        .map(|observed| observed.last_words.clone());
    // As configured when the job began: the configuration may be gone.
    let known = journal.as_ref().map(Journal::drain_target);
    let target = DrainTarget {
        sharers: findings.sharers.clone(),
        ..known.unwrap_or_else(|| {
            DrainTarget::new(job, ending.scheduler, ending.node, ending.settings)
        })
    };
    evidence::of_silent_nvml(node, target.clone());
    let mut lines = say(node, job, journal.as_ref(), &findings);
    let location = Location::of(ending.settings);
    let drained = evidence::drain(node, &target, location, &findings.faults);
    // Last: the disk may be slow.
    let mut end = JobEnd {
        last_words: last_words.unwrap_or_default(),
        by_site,
        ..JobEnd::default()
    };
    if let Some(journal) = journal {
        let (seen, drain) = ((observed, killed), drained.as_ref());
        let report = written(&journal, seen, &findings, drain, took);
        node.keep(JobOutcome::Ended(&report));
        end.by_site = journal.record().by_site.is_some();
        end.summary = report.summary().filter(|_| journal.record().summary);
        end.report = journal.record().report.then_some(report);
    }
    lines.extend(drained.map(|(line, _)| line));
    JobEnd {
        findings,
        lines,
        ..end
    }
}

fn written(
    journal: &Journal,
    (said_by_user, killed): (Option<Observations>, Vec<KilledTask>),
    findings: &Findings,
    drain: Option<&(String, bool)>,
    took: Duration,
) -> JobReport {
    let record = journal.record();
    let (job, user) = (&record.job, (journal.user.as_str(), record.uid));
    let sets_mode = |effect: &Effect| matches!(effect, Effect::SetComputeMode { .. });
    let mut report = JobReport {
        gpus: record.gpus.clone(),
        daemons: record.daemons.clone(),
        auto: record.reason.clone(),
        exclusive: journal.to_undo().any(sets_mode),
        shared: journal.joined_gpus().next().is_some(),
        began: journal.began_at,
        ready_ms: journal.ready_ms,
        teardown_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        as_before: findings.is_clean(),
        undetermined: report::lines(&findings.undetermined),
        faults: report::lines(&findings.faults),
        notes: report::lines(&findings.notes),
        killed,
        takes_turns: record.takes_turns,
        drain: report::lines(drain.map(|(line, _)| line)).pop(),
        drained: drain.is_some_and(|(_, delivered)| *delivered),
        said_by_user,
        ..JobReport::new(job, journal.scheduler, &journal.node, user)
    };
    report.advice = report.advise();
    report
}

/// A start that runs detached may wait for an `mpsd` that the user has stopped, so it is ended.
fn cancel_start(
    node: &mut impl Node,
    job: &JobId,
    meant: impl Fn(Option<&Journal>) -> bool,
) -> Result<(), Failure> {
    if !node.is_held(job) {
        return Ok(());
    }
    // Needs no lock: a journal is replaced in one step.
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

type JobFiles = (Option<Journal>, Option<Observations>, Vec<KilledTask>);

/// `None`: nothing of the job is here, or another job of its id.
fn take_down(
    node: &mut impl Node,
    job: &JobId,
    meant: impl Fn(Option<&Journal>) -> bool,
    findings: &mut Findings,
) -> Result<Option<JobFiles>, Failure> {
    cancel_start(node, job, &meant)?;
    let Some(_held) = node.find_job(job)? else {
        return Ok(None);
    };
    let journal = node.read_journal(job)?;
    if !meant(journal.as_ref()) {
        return Ok(None);
    }
    // Our own teardown causes what `mpsd` sees from here on.
    let (own, killed) = (node.take_observations(job), node.killed_tasks(job));
    let observed = own.or_else(|| node.shared_observations(journal.as_ref()?));
    match &journal {
        // A failure's record, or a prologue killed before its first effect.
        None => node.remove_job(job)?,
        Some(journal) => {
            // The watcher of an unbegun job holds no lock, so it may still run.
            if let Some(starter) = journal.starter {
                node.end_starter(starter);
            }
            node.use_nvml(&journal.nvml);
            // Now, so that it runs in parallel with the daemons' end.
            if journal.has_begun(&Effect::StartSupervisor) {
                node.prepare_nvml(&journal.gpu_uuids());
            }
            *findings = undo::undo(node, journal);
        }
    }
    Ok(Some((journal, observed, killed)))
}

fn say(
    node: &mut impl Node,
    job: &JobId,
    journal: Option<&Journal>,
    findings: &Findings,
) -> Vec<String> {
    for note in &findings.notes {
        node.log(Severity::Info, &format!("job {job}: {note}"));
    }
    let unknown = findings.undetermined.iter().map(ToString::to_string);
    let unknown = unknown.map(|text| (Severity::Warning, "undetermined", text));
    let faults = findings.faults.iter().map(ToString::to_string);
    let faults = faults.map(|text| (Severity::Error, "fault", text));
    let mut lines = Vec::new();
    for (severity, kind, text) in unknown.chain(faults) {
        let line = format!("job {job}: {text}");
        node.log(severity, &format!("{kind}: {line}"));
        lines.push(line);
    }
    match journal.and_then(|journal| audit::ended(journal, now(), findings.is_clean())) {
        Some(entry) => node.audit(&entry),
        None if !findings.is_clean() => {}
        None => {
            let line = format!("job {job}: no MPS, the node is as it was");
            node.log(Severity::Info, &line);
        }
    }
    lines
}
