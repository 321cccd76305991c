//! The begin of a job: [`begin`] is all that a prologue does. Each effect of the plan is in the
//! journal before it is done.

use super::audit;
use super::bounds;
use super::claim;
use super::evidence;
use super::findings::FailedStart;
use super::journal::Journal;
use super::ledger;
use super::node::{LockGuard, Node, Role, Severity};
use super::outcome::{self, Failing};
use super::planned::{GpusKnown, are_confirmed, make_plan};
use super::prepared::{Job, Scheduled};
use super::shared;
use super::spec::Spec;
use super::store::Store as _;
use super::undo;
use crate::plan::auto::{self, Finding};
use crate::plan::effects::{Effect, Plan};
use mpsd_core::by_site::{self, BySite};
use mpsd_core::failure::Undetermined;
use mpsd_core::record::{Record, RecordState};
use mpsd_core::request::Mode;
use mpsd_core::{Failure, Inventory, JobId};
use mpsd_sys::deadline::Deadline;
use mpsd_sys::now;
use std::time::Instant;

/// When the prologue returns: a value of its `--wait`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ReturnWhen {
    /// When the server is proved ready.
    Ready,
    /// When it is being started; a process of its own proves it, and the record tells.
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

/// Gives the job its MPS; a failure leads to what [`outcome`] says.
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
        None => {
            let lines = node.withdraw_remarks(&job.location);
            lines.iter().for_each(|line| node.log(Severity::Info, line));
            0
        }
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
    if job.by_site
        && let Some(why) = scheduled
            .script()
            .and_then(|script| by_site::of_script(&script))
    {
        return leave_out(node, job, when, None, &why);
    }
    // Comes before anything is made or asked, because most of these jobs need nothing.
    if job.request.mode == Mode::Auto
        && let Finding::Unneeded(why) = auto::find(&scheduled.devices()?, &job.settings)
    {
        return leave_out(node, job, when, None, &why);
    }
    let early = match when {
        ReturnWhen::Announced => take_over(node, job, when)?,
        ReturnWhen::Ready | ReturnWhen::Started => None,
    };
    let tried = attempt(
        node,
        job,
        scheduled,
        when,
        (began, early, GpusKnown::Remembered),
    )?;
    let Some(held) = tried else { return Ok(()) };
    let id = &job.submission.job;
    let line = format!(
        "job {id}: this node's GPUs have changed since an earlier job: its MPS is begun again"
    );
    node.log(Severity::Info, &line);
    if let Err(failure) = node.forget_attempt(id) {
        let _ = node.remove_job(id);
        return Err(failure.into());
    }
    // The time kept for a rollback may be used up, and this attempt may need one, too.
    let job = Job {
        deadline: job.deadline.less(node.settings().teardown),
        ..job.clone()
    };
    let again = (began, Some(held), GpusKnown::Asked);
    attempt(node, &job, scheduled, when, again).map(drop)
}

/// One try, which holds the lock of the job's directory from `early` on if that is given. Returns
/// the lock if it went by GPUs that the node does not have: all of it is undone.
fn attempt<N: Node>(
    node: &mut N,
    job: &Job,
    scheduled: &impl Scheduled,
    when: ReturnWhen,
    (began, early, gpus): (Instant, Option<LockGuard>, GpusKnown),
) -> Result<Option<LockGuard>, FailedStart> {
    let (settings, plan, unconfirmed) = match make_plan(node, job, scheduled, gpus) {
        Err(Failure::Refusal(refusal)) if auto::may_do_without(&job.request) => {
            return leave_out(node, job, when, early, &refusal.to_string()).map(|()| None);
        }
        made => made.map_err(|failure| {
            let id = &job.submission.job;
            let job_ended = early.is_some() && is_over(node, id);
            if gpus == GpusKnown::Asked
                && let Err(why) = node.remove_job(id)
            {
                node.log(Severity::Warning, &format!("job {id}: {why}"));
            }
            FailedStart {
                job_ended,
                ..failure.into()
            }
        })?,
    };
    let held = match early {
        Some(held) => Some(held),
        None => take_over(node, job, when)?,
    };
    let Some(held) = held else { return Ok(None) };
    let mut start = Start {
        journal: Journal {
            programs: Some(node.programs(&settings.control)),
            starter: match when {
                ReturnWhen::Announced => node.own_process(),
                ReturnWhen::Ready | ReturnWhen::Started => None,
            },
            ..Journal::new(job, &settings, &plan)
        },
        spec: Spec {
            outside: !job.by_site,
            ..Spec::new(&settings, &plan, job.deadline)
        },
        record: plan.record,
        shared: plan.shared,
        notes: plan.notes,
        unconfirmed,
        has_changed: false,
        verify: plan.verify.then_some(job.deadline),
        user_was_here: false,
        began,
        held,
    };
    if start.unconfirmed.is_none() {
        start.say_notes(node);
    }
    // A begin of a shared MPS includes its proof, which takes longer than the caller may wait.
    let goes_on = when == ReturnWhen::Started && !start.shared.is_empty();
    let begun = start.or_undo(node, |start, node| {
        start.tell_tasks(node, RecordState::Starting)?;
        bounds::expect_few_steps(node, job)?;
        if goes_on {
            Ok(())
        } else {
            start.carry_out(node)
        }
    });
    match begun {
        Err(failed) if start.may_begin_again(&failed) => return Ok(Some(start.held)),
        begun => begun?,
    }
    match when {
        ReturnWhen::Ready | ReturnWhen::Announced => start.finish(node, false)?,
        ReturnWhen::Started => start.finish_alone(node, job)?,
    }
    Ok(None)
}

/// Lets the job run as if it had not asked. Its record says why, because a step may still need MPS,
/// and tasks must know that they have none. If the record cannot be written, a job without a
/// directory here runs all the same.
fn leave_out<N: Node>(
    node: &mut N,
    job: &Job,
    when: ReturnWhen,
    early: Option<LockGuard>,
    why: &str,
) -> Result<(), FailedStart> {
    let id = &job.submission.job;
    let was_here = node.has_directory(id);
    let held = match early {
        Some(held) => Ok(Some(held)),
        None => take_over(node, job, when),
    };
    let line = Mode::auto_without(why);
    let left = match held {
        Ok(Some(_held)) => {
            let (uid, state) = (job.user.uid, RecordState::Unneeded);
            let mut record = Record::without_mps(id.clone(), uid, state, line.clone());
            record.request = Some(job.request.clone());
            record.by_site = job.by_site.then(BySite::default);
            record.warnings.extend((!job.by_site).then(|| line.clone()));
            node.write_record(&record)
        }
        Ok(None) => return Ok(()),
        Err(failed) if was_here => return Err(failed),
        Err(failed) => Err(failed.failure),
    };
    if let Err(failure) = left {
        let _ = node.remove_job(id);
        let text = format!("job {id}: its steps get no MPS: {failure}");
        node.log(Severity::Warning, &text);
    }
    node.audit(&audit::unneeded(job, &line));
    if !job.by_site {
        node.complain(&format!("job {id}: {line}"));
    }
    Ok(())
}

/// Whether `job` ended during a start that has done nothing yet. If so, removes its directory,
/// because no other end will.
fn is_over(node: &mut impl Node, job: &JobId) -> bool {
    let over = node.is_cancelled(job);
    if over && let Err(why) = node.remove_job(job) {
        node.log(Severity::Warning, &format!("job {job}: {why}"));
    }
    over
}

/// Takes down what an earlier prologue of the job left, and locks its directory; `None`: its MPS is
/// already up.
///
/// A step's daemon that is ready stays: before Slurm 24.05 a step's callbacks run twice. Torque
/// runs a job's prologue again without an epilogue in between (docs/facts/pbs.md#sister-nodes).
fn take_over(
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
    if submission.step && alive && node.is_ready(id) && journal.uid == job.user.uid {
        return Ok(None);
    }
    let line = format!("job {id}: an earlier prologue left its MPS: taken down first");
    node.log(Severity::Info, &line);
    let why = "what an earlier prologue left cannot be taken down";
    undo::undo(node, &journal).allow_start(format!("job {id}"), why)?;
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

/// Gives a start up if its job has ended. The job's epilogue waits for the lock of the start, or
/// has given up on it.
fn expect_its_job(node: &impl Node, job: &JobId) -> Result<(), Undetermined> {
    if node.is_cancelled(job) {
        let why = "it ended while its MPS was starting";
        return Err(Undetermined::new(format!("job {job}"), why));
    }
    Ok(())
}

/// Begins the MPS of `plan`, which the job of `sharer` is the first to share. Returns its journal.
/// The caller has made its directory, and `held` is its lock.
fn begin_shared(
    node: &mut impl Node,
    sharer: &Start,
    plan: &Plan,
    held: LockGuard,
) -> Result<Journal, FailedStart> {
    let Record {
        job, gpus, daemons, ..
    } = plan.record.clone();
    let mut start = Start {
        journal: Journal {
            plan: plan.effects.clone(),
            begun: 0,
            began: now(),
            ready_ms: None,
            report: false,
            summary: false,
            job: job.clone(),
            sluid: None,
            gpus,
            minors: plan.minors.clone(),
            daemons: daemons.clone(),
            ..sharer.journal.clone()
        },
        spec: Spec {
            job: job.to_string(),
            daemons,
            // Its GPU may have other jobs of the user.
            outside: false,
            ..sharer.spec.clone()
        },
        record: plan.record.clone(),
        shared: Vec::new(),
        notes: Vec::new(),
        unconfirmed: None,
        has_changed: false,
        verify: None,
        user_was_here: false,
        began: Instant::now(),
        held,
    };
    let sharer = &sharer.journal.job;
    start.or_undo(node, |start, node| {
        start.carry_out(node)?;
        Ok(start.prove(node)?)
    })?;
    let line = format!("shared MPS {job}: begun for job {sharer}");
    node.log(Severity::Info, &line);
    Ok(start.journal)
}

struct Start {
    journal: Journal,
    spec: Spec,
    record: Record,
    /// The plans of the shared MPS that it joins.
    shared: Vec<Plan>,
    /// Of the plan, until they are said.
    notes: Vec<String>,
    /// The GPUs that the plan goes by, until NVML has confirmed them.
    unconfirmed: Option<Inventory>,
    /// NVML tells others.
    has_changed: bool,
    /// Run `mps-probe` until then.
    verify: Option<Deadline>,
    /// Its user had another process on the node when `mpsd` started.
    user_was_here: bool,
    began: Instant,
    held: LockGuard,
}

impl Start {
    fn say_notes(&self, node: &mut impl Node) {
        let job = &self.journal.job;
        for warning in &self.record.warnings {
            let line = format!("job {job}: {warning}");
            node.log(Severity::Warning, &line);
            // Torque: the job's own error file.
            node.complain(&line);
        }
        for note in &self.notes {
            node.log(Severity::Info, &format!("job {job}: {note}"));
        }
    }

    fn or_undo<N: Node>(
        &mut self,
        node: &mut N,
        work: impl FnOnce(&mut Self, &mut N) -> Result<(), FailedStart>,
    ) -> Result<(), FailedStart> {
        work(self, node).map_err(|mut failed| {
            failed
                .findings
                .merge(undo::undo_effects(node, &self.journal));
            // Now, because the mark goes with the directory.
            failed.job_ended = node.is_cancelled(&self.journal.job);
            if !self.may_begin_again(&failed) {
                undo::remove(node, &self.journal, &mut failed.findings);
            }
            failed.gpus = self.journal.gpu_names();
            failed
        })
    }

    fn may_begin_again(&self, failed: &FailedStart) -> bool {
        self.has_changed && failed.findings.is_clean() && !failed.job_ended
    }

    /// Carries the plan out. After its last effect `mpsd` is starting.
    fn carry_out<N: Node>(&mut self, node: &mut N) -> Result<(), FailedStart> {
        while self.journal.begun < self.journal.plan.len() {
            let number = self.journal.begun;
            self.journal.begun += 1;
            if let Err(failure) = node.write_journal(&self.journal) {
                // An effect that is not in the journal is not done, so it must not be undone.
                self.journal.begun = number;
                return Err(failure.into());
            }
            self.perform(node, number)?;
        }
        Ok(())
    }

    fn perform<N: Node>(&mut self, node: &mut N, number: usize) -> Result<(), FailedStart> {
        let journal = &mut self.journal;
        match journal.plan[number].clone() {
            Effect::ClaimGpu { gpu } => claim::enter(node, &journal.job, &gpu)?,
            Effect::SetComputeMode { gpu, mode } => {
                claim::set_mode(node, &journal.job, &gpu, mode)?
            }
            Effect::JoinShared { gpu } => {
                expect_its_job(node, &journal.job)?;
                let mut plans = self.shared.iter();
                let plan = plans.find(|plan| plan.record.gpus[0].uuid == gpu);
                let plan =
                    plan.ok_or_else(|| Undetermined::new(gpu.to_string(), "it is not shared"))?;
                let begin = |node: &mut N, held| begin_shared(node, self, plan, held);
                let shared =
                    shared::join(node, &self.journal.job, &plan.record.job, begin, undo::undo)?;
                let job = &self.journal.job;
                if let Err(why) = node.note_before(job, self.journal.uid, &gpu) {
                    // No job fails because its report lacks something.
                    let id = &shared.job;
                    let line =
                        format!("shared MPS {id}: the user of job {job} is not told of it: {why}");
                    node.log(Severity::Warning, &line);
                }
                if let Some(deadline) = self.verify {
                    node.probe(&shared, &shared.daemons[0], deadline)?;
                }
            }
            Effect::MakeCgroup => {
                journal.cgroup = node.make_cgroup(journal)?;
                node.write_journal(journal)?;
            }
            Effect::MakeDirectories { daemon } => node.make_directories(journal, daemon)?,
            Effect::StartSupervisor => {
                expect_its_job(node, &journal.job)?;
                journal.supervisor = Some(node.start_supervisor(journal, &self.spec)?);
                node.write_journal(journal)?;
                // Costs nothing: NVIDIA's program and NVML take longer to start.
                self.user_was_here = node.user_is_here(journal);
                self.confirm(node)?;
            }
        }
        Ok(())
    }

    /// Has NVML confirm the GPUs that the plan goes by.
    fn confirm<N: Node>(&mut self, node: &mut N) -> Result<(), FailedStart> {
        let Some(known) = self.unconfirmed.take() else {
            return Ok(());
        };
        self.has_changed = !are_confirmed(node, &known, &self.journal.gpu_uuids())?;
        if self.has_changed {
            let why = "they have changed since an earlier job, and what was begun for those cannot be taken down";
            return Err(Undetermined::new("this node's GPUs", why).into());
        }
        self.say_notes(node);
        Ok(())
    }

    /// Proves what was started and tells the job's tasks; `alone`: no caller waits for this
    /// process.
    fn finish(mut self, node: &mut impl Node, alone: bool) -> Result<(), FailedStart> {
        self.or_undo(node, |start, node| {
            if alone && let Some(own) = node.own_process() {
                start.journal.starter = Some(own);
                node.write_journal(&start.journal)?;
            }
            start.carry_out(node)?;
            if start.shared.is_empty() {
                start.prove(node)?;
                if let Some(deadline) = start.verify {
                    let mut daemons = start.journal.daemons.iter();
                    daemons.try_for_each(|daemon| node.probe(&start.journal, daemon, deadline))?;
                }
            } else {
                start.note_ready(node)?;
            }
            expect_its_job(node, &start.journal.job)?;
            start.tell_tasks(node, RecordState::Ready)?;
            Ok(())
        })?;
        node.audit(&audit::begun(&self.journal));
        Ok(())
    }

    /// This process returns, and a process of its own finishes the start. The record gets the
    /// outcome.
    fn finish_alone<N: Node>(self, node: &mut N, job: &Job) -> Result<(), FailedStart> {
        let mut start = Some(self);
        let detached = node.detach(|node| {
            if let Some(Err(failed)) = start.take().map(|start| start.finish(node, true)) {
                outcome::of_failure(node, &Failing::of(job, false), &failed);
            }
        });
        match start {
            // The child shares this lock. Releasing it here would release the child's too.
            start if detached => {
                std::mem::forget(start);
                Ok(())
            }
            Some(start) => start.finish(node, false),
            None => Ok(()),
        }
    }

    fn prove(&mut self, node: &mut impl Node) -> Result<(), Failure> {
        expect_its_job(node, &self.journal.job)?;
        let proved = node
            .await_ready(&self.journal, &self.spec)
            .map_err(|failure| {
                evidence::of_failed_start(node, &self.journal, self.user_was_here, failure)
            })?;
        ledger::forget_failed_starts(node);
        // A process that the driver holds at the job's end counts against the node only if it is
        // one of these.
        self.journal.proved = proved;
        self.note_ready(node)
    }

    fn note_ready(&mut self, node: &mut impl Node) -> Result<(), Failure> {
        self.journal.ready_ms = u64::try_from(self.began.elapsed().as_millis()).ok();
        node.write_journal(&self.journal)
    }

    fn tell_tasks(&mut self, node: &mut impl Node, state: RecordState) -> Result<(), Failure> {
        self.record.state = state;
        node.write_record(&self.record)
    }
}
