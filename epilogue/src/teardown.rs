//! One job's teardown, its log lines and its drain.

use crate::NAME;
use mpsd::cli::complain;
use mpsd::config::{Cgroup, Settings};
use mpsd::lifecycle::Journal;
use mpsd::model::paths::JobPaths;
use mpsd::model::{Failure, Fault, JobId, Paths};
use mpsd::node::Node;
use mpsd::node::drain::{self, Place};
use mpsd::node::log::{Severity, line};
use mpsd::node::real::{CgroupChoice, Reach, RealNode};
use mpsd::node::take_down::{self, Findings};
use mpsd::scheduler::{Scheduler, Site, Submission};
use mpsd::sys::deadline::Deadline;
use std::path::Path;
use std::time::Duration;

/// Time for a lock: the job's prologue may be at work still.
const LOCK_TIME: Duration = Duration::from_secs(5);
/// Time for one answer of NVML.
const NVML_TIME: Duration = Duration::from_secs(5);

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
pub fn job(job: &JobId, settings: &Settings, submission: &Submission, name: &str, deadline: Deadline) -> bool {
    match attempt(job, settings, deadline) {
        Ok(Done { findings, journal }) => {
            report(job, &findings);
            drain_for(job, settings, submission, name, journal.as_ref(), &findings.faults);
            findings.is_clean()
        }
        Err(failure) => {
            let text = format!("job {job}: {failure}");
            complain(NAME, &text);
            line(NAME, Severity::Warning, &format!("{}: {text}", failure.kind()));
            if let Failure::Fault(fault) = &failure {
                drain_for(job, settings, submission, name, None, std::slice::from_ref(fault));
            }
            false
        }
    }
}

struct Done {
    findings: Findings,
    journal: Option<Journal>,
}

fn attempt(job: &JobId, settings: &Settings, deadline: Deadline) -> Result<Done, Failure> {
    let mut node = RealNode::new(reach(settings, deadline))?;
    let nothing = |findings| Done { findings, journal: None };
    let Some(_held) = node.find_job(job)? else { return Ok(nothing(Findings::default())) };
    let Some(journal) = node.read_journal(job)? else {
        // A refusal's or a failure's record, or a prologue killed before its first effect.
        node.remove_job(job)?;
        return Ok(nothing(Findings::default()));
    };
    node.use_nvml(&journal.nvml);
    let findings = take_down::undo(&mut node, &journal);
    Ok(Done { findings, journal: Some(journal) })
}

fn reach(settings: &Settings, deadline: Deadline) -> Reach {
    let limit = deadline.remaining();
    Reach {
        program: NAME,
        paths: settings.paths.clone(),
        nvml: settings.nvml.clone(),
        cgroup: match &settings.cgroup {
            Cgroup::Auto => CgroupChoice::Auto,
            Cgroup::None => CgroupChoice::None,
            Cgroup::Below(path) => CgroupChoice::Under(path.clone()),
        },
        nvml_time: NVML_TIME.min(limit / 3),
        lock_time: LOCK_TIME.min(limit / 4),
        teardown: limit / 2,
    }
}

fn report(job: &JobId, findings: &Findings) {
    for note in &findings.notes {
        line(NAME, Severity::Info, &format!("job {job}: {note}"));
    }
    for unknown in &findings.undetermined {
        let text = format!("job {job}: {unknown}");
        complain(NAME, &text);
        line(NAME, Severity::Warning, &format!("undetermined: {text}"));
    }
    for fault in &findings.faults {
        let text = format!("job {job}: {fault}");
        complain(NAME, &text);
        line(NAME, Severity::Error, &format!("fault: {text}"));
    }
    if findings.is_clean() {
        line(NAME, Severity::Info, &format!("job {job}: MPS ended, the node is as it was"));
    }
}

fn drain_for(
    job: &JobId,
    settings: &Settings,
    submission: &Submission,
    name: &str,
    journal: Option<&Journal>,
    faults: &[Fault],
) {
    let Some(fault) = faults.iter().find(|fault| fault.drains()) else { return };
    // As configured when the job began: the configuration may be gone.
    let (enabled, prefix) = match journal {
        Some(journal) => (journal.drain.enabled, journal.drain.prefix.as_str()),
        None => (settings.drain.enabled, settings.drain.prefix.as_str()),
    };
    if !enabled {
        return;
    }
    let place = Place {
        scheduler: submission.scheduler,
        site: Site { home: settings.pbs.home.clone(), exec: settings.pbs.exec.clone(), node: settings.pbs.node.clone() },
        node: name,
        slurm_conf: std::env::var("SLURM_CONF").ok(),
    };
    let gpus = journal.map(|j| j.gpus.iter().map(|g| g.uuid.as_str().to_owned()).collect()).unwrap_or_default();
    let (text, _) = drain::deliver(&settings.paths, &place, prefix, job, fault, gpus);
    line(NAME, Severity::Error, &text);
    complain(NAME, &text);
}
