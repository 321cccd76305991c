//! The begin of a job. [`begin`] is all that a prologue does; [`Start`] does what is journaled.

use super::audit;
use super::bounds;
use super::findings::FailedStart;
use super::journal::Journal;
use super::node::{LockGuard, Node, Role, Severity};
use super::outcome::{self, Failing};
use super::planned::make_plan;
use super::prepared::{Job, Scheduled};
use super::spec::Spec;
use super::start::{Start, ended};
use super::store::Store as _;
use super::undo;
use crate::plan::auto::{self, Finding};
use mpsd_core::by_site::{self, BySite};
use mpsd_core::record::{Record, RecordState};
use mpsd_core::request::Mode;
use mpsd_core::{Failure, JobId};
use std::time::Instant;

/// When the prologue returns: a value of its `--wait`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ReturnWhen {
    Ready,
    /// Once the start is under way: a detached process finishes it and writes the outcome to the
    /// record.
    Started,
    /// As 'ready', for a caller that may stop waiting. The record exists from the first moment. The
    /// journal names this process, so that an end of the job can end it.
    Announced,
}

#[derive(Debug)]
pub struct Begun {
    pub code: u8,
    pub failed: Option<FailedStart>,
}

pub fn begin<N: Node>(
    node: &mut N,
    job: &Job,
    scheduled: &impl Scheduled,
    when: ReturnWhen,
) -> Begun {
    let failed = start(node, job, scheduled, when).err();
    let code = match &failed {
        Some(failed) => {
            let job = Failing::of(job, when != ReturnWhen::Announced);
            outcome::of_failure(node, &job, failed)
        }
        None => 0,
    };
    Begun { code, failed }
}

fn start<N: Node>(
    node: &mut N,
    job: &Job,
    scheduled: &impl Scheduled,
    when: ReturnWhen,
) -> Result<(), FailedStart> {
    let began = Instant::now();
    if job.asked.by_site
        && let Some(why) = scheduled
            .script()
            .and_then(|script| by_site::of_script(&script))
    {
        return begin_without_mps(node, job, when, None, &why);
    }
    // Before any lock, and before NVML: most of these jobs need nothing.
    if job.asked.request.mode == Mode::Auto
        && let Finding::Unneeded(why) = auto::find(&scheduled.devices()?, &job.settings)
    {
        return begin_without_mps(node, job, when, None, &why);
    }
    let early = match when {
        ReturnWhen::Announced => clear_and_lock(node, job, when)?,
        ReturnWhen::Ready | ReturnWhen::Started => None,
    };
    let plan = match make_plan(node, job, scheduled) {
        Err(Failure::Refusal(refusal)) if auto::may_do_without(&job.asked.request) => {
            return begin_without_mps(node, job, when, early, &refusal.to_string());
        }
        made => made.map_err(|failure| FailedStart {
            job_ended: early.is_some() && clear_if_over(node, &job.submission.job),
            ..failure.into()
        })?,
    };
    let held = match early {
        Some(held) => Some(held),
        None => clear_and_lock(node, job, when)?,
    };
    let Some(held) = held else { return Ok(()) };
    let journal = Journal {
        programs: Some(node.programs(&job.settings.control)),
        starter: match when {
            ReturnWhen::Announced => node.own_process(),
            ReturnWhen::Ready | ReturnWhen::Started => None,
        },
        ..Journal::new(job, plan)
    };
    let spec = Spec::to_start(&journal, &job.settings, job.deadline);
    let mut start = Start::new(journal, spec, began, held);
    start.say_notes(node);
    // The detached process begins a shared MPS: with its proof, too long for the caller.
    let goes_on = when == ReturnWhen::Started && !start.journal.plan.shared_plans.is_empty();
    start.or_undo(node, |start, node| {
        start.tell_tasks(node, RecordState::Starting)?;
        bounds::expect_few_steps(node, job)?;
        if goes_on {
            Ok(())
        } else {
            start.carry_out(node)
        }
    })?;
    match when {
        ReturnWhen::Ready | ReturnWhen::Announced => start.finish(node, job, false),
        ReturnWhen::Started => start.finish_detached(node, job),
    }
}

/// The record says why, because a step may still need MPS, and tasks must know that they have none.
/// If it cannot be written, a job without a directory here runs all the same.
fn begin_without_mps<N: Node>(
    node: &mut N,
    job: &Job,
    when: ReturnWhen,
    early: Option<LockGuard>,
    why: &str,
) -> Result<(), FailedStart> {
    let id = &job.submission.job;
    let was_here = node.has_directory(id);
    let was_over = early.is_none() && node.is_cancelled(id);
    let held = match early {
        Some(held) => Ok(Some(held)),
        None => clear_and_lock(node, job, when),
    };
    let line = Mode::auto_without(why);
    let held = match held {
        Ok(Some(_)) if !was_over && clear_if_over(node, id) => return Ok(()),
        Ok(Some(held)) => Ok(held),
        Ok(None) => return Ok(()),
        Err(failed) if was_here => return Err(failed),
        Err(failed) => Err(failed.failure),
    };
    let (uid, state) = (job.user.uid, RecordState::Unneeded);
    let mut record = Record::without_mps(id.clone(), uid, state, line.clone());
    record.request = Some(job.asked.request.clone());
    record.by_site = job.asked.by_site.then(BySite::default);
    record
        .warnings
        .extend((!job.asked.by_site).then(|| line.clone()));
    if let Err(failure) = outcome::write_without_mps(node, held, &record) {
        let text = format!("job {id}: its steps get no MPS: {failure}");
        node.log(Severity::Warning, &text);
    }
    node.audit(&audit::unneeded(job, &line));
    if !job.asked.by_site {
        node.complain(&format!("job {id}: {line}"));
    }
    Ok(())
}

/// Whether `job` ended during its start. If so, removes its directory: no other end will.
fn clear_if_over(node: &mut impl Node, job: &JobId) -> bool {
    let over = node.is_cancelled(job);
    if over && let Err(why) = node.remove_job(job) {
        node.log(Severity::Warning, &format!("job {job}: {why}"));
    }
    over
}

/// Takes down what an earlier prologue of the job left. `None`: its MPS is already up.
///
/// A step's daemon that is ready stays: before Slurm 24.05 a step's callbacks run twice. Torque
/// runs a job's prologue again without an epilogue in between (docs/facts/pbs.md#sister-nodes).
fn clear_and_lock(
    node: &mut impl Node,
    job: &Job,
    when: ReturnWhen,
) -> Result<Option<LockGuard>, FailedStart> {
    let submission = &job.submission;
    let id = &submission.job;
    let held = open(node, job, when)?;
    let Some(journal) = node.read_journal(id)? else {
        return Ok(Some(held));
    };
    let mut members = node.members(&journal).into_iter();
    let alive = members.any(|m| m.role == Role::Control && !m.is_defunct());
    if submission.step && alive && node.is_ready(id) && journal.uid() == job.user.uid {
        return Ok(None);
    }
    let line = format!("job {id}: an earlier prologue left its MPS: taken down first");
    node.log(Severity::Info, &line);
    let why = "what an earlier prologue left cannot be taken down";
    let was_over = node.is_cancelled(id);
    let (findings, is_over) = undo::undo_start(node, &journal);
    let job_ended = is_over && !was_over;
    let allowed = match findings.allow_start(format!("job {id}"), why) {
        Ok(()) if job_ended => Err(ended(id).into()),
        allowed => allowed,
    };
    allowed.map_err(|failed| FailedStart {
        job_ended,
        ..failed
    })?;
    // The teardown removed the directory, and the lock file with it.
    drop(held);
    Ok(Some(open(node, job, when)?))
}

fn open(node: &mut impl Node, job: &Job, when: ReturnWhen) -> Result<LockGuard, Failure> {
    let id = &job.submission.job;
    let held = node.open_job(id)?;
    if when == ReturnWhen::Announced {
        let reason = "its MPS is being started".to_owned();
        node.write_record(&Record {
            deadline_s: u32::try_from(job.settings.deadline.as_secs()).unwrap_or(u32::MAX),
            ..Record::without_mps(id.clone(), job.user.uid, RecordState::Starting, reason)
        })?;
    }
    Ok(held)
}
