//! A start: carries the effects of a plan out, each after it is in the journal, and undoes them if
//! one fails.

use super::audit;
use super::claim;
use super::evidence;
use super::findings::FailedStart;
use super::journal::Journal;
use super::node::{LockGuard, Node, Severity};
use super::outcome::{self, Failing};
use super::prepared::Job;
use super::shared;
use super::spec::{Spec, ms};
use super::store::Store as _;
use super::undo;
use crate::plan::effects::{Effect, Plan};
use mpsd_core::failure::Undetermined;
use mpsd_core::record::{Record, RecordState};
use mpsd_core::{Failure, JobId};
use mpsd_sys::now;
use std::time::Instant;

pub(super) struct Start {
    pub(super) journal: Journal,
    spec: Spec,
    /// When `mpsd` started, another process of its user was on the node.
    user_was_here: bool,
    began: Instant,
    held: LockGuard,
}

impl Start {
    pub(super) fn new(journal: Journal, spec: Spec, began: Instant, held: LockGuard) -> Self {
        Self {
            journal,
            spec,
            user_was_here: false,
            began,
            held,
        }
    }

    pub(super) fn say_notes(&self, node: &mut impl Node) {
        let job = self.journal.job();
        for warning in &self.journal.record().warnings {
            let line = format!("job {job}: {warning}");
            node.log(Severity::Warning, &line);
            // Torque: the job's own error file.
            node.complain(&line);
        }
        for note in &self.journal.plan.notes {
            node.log(Severity::Info, &format!("job {job}: {note}"));
        }
    }

    pub(super) fn or_undo<N: Node>(
        &mut self,
        node: &mut N,
        work: impl FnOnce(&mut Self, &mut N) -> Result<(), FailedStart>,
    ) -> Result<(), FailedStart> {
        work(self, node).map_err(|mut failed| {
            let (findings, is_over) = undo::undo_start(node, &self.journal);
            failed.job_ended = is_over;
            failed.findings.merge(findings);
            failed.gpus = self.journal.gpu_names();
            failed
        })
    }

    pub(super) fn carry_out<N: Node>(&mut self, node: &mut N) -> Result<(), FailedStart> {
        while self.journal.effects_begun < self.journal.plan.effects.len() {
            let number = self.journal.effects_begun;
            self.journal.effects_begun += 1;
            if let Err(failure) = node.write_journal(&self.journal) {
                // An effect that is not in the journal is not done, so it must not be undone.
                self.journal.effects_begun = number;
                return Err(failure.into());
            }
            self.perform(node, number)?;
        }
        Ok(())
    }

    fn perform<N: Node>(&mut self, node: &mut N, number: usize) -> Result<(), FailedStart> {
        let journal = &mut self.journal;
        match journal.plan.effects[number].clone() {
            Effect::ClaimGpu { gpu } => claim::enter(node, journal.job(), &gpu)?,
            Effect::SetComputeMode { gpu, mode } => {
                claim::set_mode(node, journal.job(), &gpu, mode)?
            }
            Effect::JoinShared { gpu } => {
                expect_its_job(node, journal.job())?;
                let mut plans = self.journal.plan.shared_plans.iter();
                let plan = plans.find(|plan| plan.record.gpus[0].uuid == gpu);
                let plan =
                    plan.ok_or_else(|| Undetermined::new(gpu.to_string(), "it is not shared"))?;
                let begin = |node: &mut N, held| begin_shared(node, self, plan, held);
                let job = self.journal.job();
                let shared = shared::join(node, job, &plan.record.job, begin)?;
                if let Err(why) = node.note_before(job, self.journal.uid(), &gpu) {
                    // No job fails because its report lacks something.
                    let id = shared.job();
                    let line =
                        format!("shared MPS {id}: the user of job {job} is not told of it: {why}");
                    node.log(Severity::Warning, &line);
                }
            }
            Effect::MakeCgroup => {
                journal.cgroup = node.make_cgroup(journal)?;
                node.write_journal(journal)?;
            }
            Effect::MakeDirectories { daemon } => node.make_directories(journal, daemon)?,
            Effect::StartSupervisor => {
                expect_its_job(node, journal.job())?;
                journal.supervisor = Some(node.start_supervisor(journal, &self.spec)?);
                node.write_journal(journal)?;
                // Costs nothing: NVIDIA's program and NVML take longer to start.
                self.user_was_here = node.user_is_here(journal);
            }
        }
        Ok(())
    }

    /// `detached`: no caller waits for this process.
    pub(super) fn finish(
        mut self,
        node: &mut impl Node,
        job: &Job,
        detached: bool,
    ) -> Result<(), FailedStart> {
        self.or_undo(node, |start, node| {
            if detached && let Some(own) = node.own_process() {
                start.journal.starter = Some(own);
                node.write_journal(&start.journal)?;
            }
            start.carry_out(node)?;
            if start.journal.plan.shared_plans.is_empty() {
                start.prove(node)?;
            } else {
                start.note_ready(node)?;
            }
            expect_its_job(node, start.journal.job())?;
            start.tell_tasks(node, RecordState::Ready)?;
            Ok(())
        })?;
        let Self { journal, held, .. } = self;
        node.audit(&audit::begun(&journal));
        // An end may wait for it.
        drop(held);
        let lines = node.withdraw_remarks(&job.location);
        lines.iter().for_each(|line| node.log(Severity::Info, line));
        Ok(())
    }

    /// A process of its own finishes the start. The record gets the outcome.
    pub(super) fn finish_detached<N: Node>(
        self,
        node: &mut N,
        job: &Job,
    ) -> Result<(), FailedStart> {
        let mut start = Some(self);
        let detached = node.detach(|node| {
            if let Some(Err(failed)) = start.take().map(|start| start.finish(node, job, true)) {
                outcome::of_failure(node, &Failing::of(job, false), &failed);
            }
        });
        match start {
            // The child shares this lock. Releasing it here would release the child's too.
            start if detached => {
                std::mem::forget(start);
                Ok(())
            }
            Some(start) => start.finish(node, job, false),
            None => Ok(()),
        }
    }

    fn prove(&mut self, node: &mut impl Node) -> Result<(), Failure> {
        expect_its_job(node, self.journal.job())?;
        let proved = node
            .await_ready(&self.journal, &self.spec)
            .map_err(|failure| {
                evidence::of_failed_start(node, &self.journal, self.user_was_here, failure)
            })?;
        // With `mpsd` these count against the node if the driver holds them later.
        self.journal.proved = proved;
        self.note_ready(node)
    }

    fn note_ready(&mut self, node: &mut impl Node) -> Result<(), Failure> {
        self.journal.ready_ms = u64::try_from(self.began.elapsed().as_millis()).ok();
        node.write_journal(&self.journal)
    }

    pub(super) fn tell_tasks(
        &self,
        node: &mut impl Node,
        state: RecordState,
    ) -> Result<(), Failure> {
        let record = self.journal.record().clone();
        node.write_record(&Record { state, ..record })
    }
}

/// Begins the MPS of `plan`. The caller has made its directory, and `held` is its lock.
fn begin_shared(
    node: &mut impl Node,
    sharer: &Start,
    plan: &Plan,
    held: LockGuard,
) -> Result<Journal, FailedStart> {
    let journal = Journal {
        plan: plan.clone(),
        effects_begun: 0,
        began_at: now(),
        ready_ms: None,
        ..sharer.journal.clone()
    };
    let job = journal.job().clone();
    let spec = Spec {
        job: job.clone(),
        daemons: journal.record().daemons.clone(),
        // Its GPU may have other jobs of the user.
        outside: false,
        // An earlier one may have used the time.
        start_ms: sharer
            .spec
            .start_ms
            .min(ms(node.settings().ends.remaining() * 3 / 5)),
        ..sharer.spec.clone()
    };
    let mut start = Start::new(journal, spec, Instant::now(), held);
    let sharer = sharer.journal.job();
    start.or_undo(node, |start, node| {
        start.carry_out(node)?;
        Ok(start.prove(node)?)
    })?;
    let line = format!("shared MPS {job}: begun for job {sharer}");
    node.log(Severity::Info, &line);
    Ok(start.journal)
}

pub(super) fn ended(job: &JobId) -> Undetermined {
    Undetermined::new(format!("job {job}"), "it ended while its MPS was starting")
}

/// Fails if the job has ended: its epilogue waits for this lock, or has given up on it.
fn expect_its_job(node: &impl Node, job: &JobId) -> Result<(), Undetermined> {
    if node.is_cancelled(job) {
        return Err(ended(job));
    }
    Ok(())
}
