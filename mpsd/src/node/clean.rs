//! One job's end, whoever asks for it: the epilogue when the job has ended, or `mpsctl reconcile` when the scheduler
//! has forgotten it. The journal backwards, the log lines, the drain on proof.

use super::Node;
use super::log::{Severity, line};
use super::real::{Reach, RealNode};
use crate::job::Journal;
use crate::job::undo::{self, Findings};
use crate::scheduler::drain::{self, Place};
use crate::scheduler::{Scheduler, Site};
use crate::sys::deadline::Deadline;
use mpsd_core::config::Settings;
use mpsd_core::{Failure, Fault, JobId};

/// Who takes a job down, and what is in force.
#[derive(Debug, Clone)]
pub struct By<'a> {
    /// Name of the program, for log lines.
    pub program: &'static str,
    /// What is in force on the node; the job's journal goes before it.
    pub settings: &'a Settings,
    /// Whose job it is.
    pub scheduler: Scheduler,
    /// The node's name in the scheduler.
    pub node: &'a str,
    /// `SLURM_CONF`, where this program's environment names one.
    pub slurm_conf: Option<String>,
    /// When to give up.
    pub deadline: Deadline,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The node is as it was before the job.
    pub clean: bool,
    /// What an administrator reads on standard error; it stands in the node's log as well.
    pub lines: Vec<String>,
}

/// Where PBS lives, as `settings` say.
pub fn site(settings: &Settings) -> Site {
    Site {
        home: settings.pbs.home.clone(),
        exec: settings.pbs.exec.clone(),
        node: settings.pbs.node.clone(),
    }
}

/// Takes `job` down. Costs nothing where it has no directory.
pub fn job(job: &JobId, by: &By<'_>) -> Ended {
    end(job, by, None)
}

/// Takes `job` down if its journal is still `judged`: a job that the scheduler started anew under the same id since then
/// is another one.
pub fn job_as_judged(job: &JobId, by: &By<'_>, judged: Option<&Journal>) -> Ended {
    end(job, by, Some(judged))
}

fn end(job: &JobId, by: &By<'_>, judged: Option<Option<&Journal>>) -> Ended {
    match attempt(job, by, judged) {
        Ok(None) => Ended {
            clean: true,
            lines: Vec::new(),
        },
        Ok(Some(Done { findings, journal })) => {
            let mut lines = report(job, by, &findings);
            lines.extend(drain_for(job, by, journal.as_ref(), &findings.faults));
            Ended {
                clean: findings.is_clean(),
                lines,
            }
        }
        Err(failure) => {
            let text = format!("job {job}: {failure}");
            line(
                by.program,
                Severity::Warning,
                &format!("{}: {text}", failure.kind()),
            );
            let mut lines = vec![text];
            if let Failure::Fault(fault) = &failure {
                lines.extend(drain_for(job, by, None, std::slice::from_ref(fault)));
            }
            Ended { clean: false, lines }
        }
    }
}

struct Done {
    findings: Findings,
    journal: Option<Journal>,
}

fn attempt(job: &JobId, by: &By<'_>, judged: Option<Option<&Journal>>) -> Result<Option<Done>, Failure> {
    let limit = by.deadline.remaining();
    let mut node = RealNode::new(Reach::of(by.program, by.settings, limit, limit / 2))?;
    let Some(_held) = node.find_job(job)? else {
        return Ok(None);
    };
    let journal = node.read_journal(job)?;
    if judged.is_some_and(|judged| judged != journal.as_ref()) {
        return Ok(None);
    }
    let Some(journal) = journal else {
        // A refusal's or a failure's record, or a prologue killed before its first effect.
        node.remove_job(job)?;
        return Ok(Some(Done {
            findings: Findings::default(),
            journal: None,
        }));
    };
    node.use_nvml(&journal.nvml);
    let findings = undo::undo(&mut node, &journal);
    Ok(Some(Done {
        findings,
        journal: Some(journal),
    }))
}

fn report(job: &JobId, by: &By<'_>, findings: &Findings) -> Vec<String> {
    let mut lines = Vec::new();
    for note in &findings.notes {
        line(by.program, Severity::Info, &format!("job {job}: {note}"));
    }
    for unknown in &findings.undetermined {
        let text = format!("job {job}: {unknown}");
        line(by.program, Severity::Warning, &format!("undetermined: {text}"));
        lines.push(text);
    }
    for fault in &findings.faults {
        let text = format!("job {job}: {fault}");
        line(by.program, Severity::Error, &format!("fault: {text}"));
        lines.push(text);
    }
    if findings.is_clean() {
        line(
            by.program,
            Severity::Info,
            &format!("job {job}: MPS ended, the node is as it was"),
        );
    }
    lines
}

/// Drains for the first fault that does, and says so.
fn drain_for(job: &JobId, by: &By<'_>, journal: Option<&Journal>, faults: &[Fault]) -> Option<String> {
    let fault = faults.iter().find(|fault| fault.drains())?;
    let settings = by.settings;
    // As configured when the job began: the configuration may be gone.
    let (enabled, prefix) = match journal {
        Some(journal) => (journal.drain.enabled, journal.drain.prefix.as_str()),
        None => (settings.drain.enabled, settings.drain.prefix.as_str()),
    };
    if !enabled {
        return None;
    }
    let place = Place {
        scheduler: by.scheduler,
        site: site(settings),
        node: by.node,
        slurm_conf: by
            .slurm_conf
            .clone()
            .or_else(|| journal?.drain.slurm_conf.clone()),
    };
    let gpus = journal
        .map(|j| j.gpus.iter().map(|g| g.uuid.as_str().to_owned()).collect())
        .unwrap_or_default();
    let (text, _) = drain::deliver(&settings.paths, &place, prefix, job, fault, gpus);
    line(by.program, Severity::Error, &text);
    Some(text)
}
