//! The begin of a job: [`start`] is all that a prologue does, a step a line.

use super::audit;
use super::case::{Job, Scheduled};
use super::effects;
use super::evidence;
use super::journal::{Journal, ProcessRef};
use super::node::{LockGuard, Node, Role, Severity};
use super::outcome;
use super::spec::Spec;
use super::store::Store as _;
use super::suspicion::PAUSE_S;
use super::undo::{self, Failed};
use crate::plan::effects::Plan;
use crate::plan::{Case, decide, tasks};
use crate::scheduler::Devices;
use crate::sys::deadline::Deadline;
use mpsd_core::config::Settings;
use mpsd_core::failure::Undetermined;
use mpsd_core::record::{Record, RecordState};
use mpsd_core::{Failure, Inventory, JobId};
use std::time::Instant;

/// When the prologue returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// When the daemons are proved ready.
    Ready,
    /// When they are being started; a process of its own proves them, and the record tells.
    Started,
    /// When they are proved ready, but the caller may stop waiting before: from the first moment the record says that the start
    /// is under way, and the journal names this process, so that an end of the job can end it.
    Announced,
}

/// What came of it.
#[derive(Debug)]
pub struct Begun {
    /// The prologue's exit code.
    pub code: u8,
    /// The failure that it stands for.
    pub failed: Option<Failed>,
}

/// Gives the job its MPS; where that fails, does what the failure leads to.
pub fn begin<N: Node>(node: &mut N, job: &Job, scheduled: &impl Scheduled, until: Until) -> Begun {
    match start(node, job, scheduled, until) {
        Ok(()) => {
            for line in node.withdraw_remarks(&job.site) {
                node.log(Severity::Info, &line);
            }
            Begun {
                code: 0,
                failed: None,
            }
        }
        Err(failed) => Begun {
            code: outcome::of_failure(node, job, &failed, until != Until::Announced),
            failed: Some(failed),
        },
    }
}

fn start<N: Node>(node: &mut N, job: &Job, scheduled: &impl Scheduled, until: Until) -> Result<(), Failed> {
    let began = Instant::now();
    let announced = until == Until::Announced;
    let early = match announced {
        true => take_over(node, job, until)?,
        false => None,
    };
    let Looked {
        settings,
        plan,
        devices,
        inventory,
    } = look(node, job, scheduled).map_err(|failure| Failed {
        job_ended: early.is_some() && is_over(node, &job.asked.submission.job),
        ..failure.into()
    })?;
    let held = match early {
        Some(held) => Some(held),
        None => take_over(node, job, until)?,
    };
    let Some(held) = held else { return Ok(()) };
    let mut start = Start {
        journal: Journal {
            programs: Some(node.programs(&settings.control)),
            starter: announced.then(|| node.own_process()).flatten(),
            ..Journal::new(job, &settings, &plan)
        },
        spec: Spec::new(&settings, &plan, job.deadline),
        record: job.record(&settings, &plan, &devices, &inventory),
        verify: plan.verify,
        failed_starts_drain: settings.drain.on_failed_starts,
        deadline: job.deadline,
        began,
        _held: held,
    };
    start.say_notes(node, &plan);
    start.or_undo(node, |start, node| {
        start.tell_tasks(node, RecordState::Starting)?;
        effects::carry_out(node, &mut start.journal, &start.spec)
    })?;
    match until {
        Until::Ready | Until::Announced => start.finish(node, None),
        Until::Started => start.finish_alone(node, job),
    }
}

/// What is known of a job before anything is done for it.
struct Looked {
    settings: Settings,
    plan: Plan,
    devices: Devices,
    inventory: Inventory,
}

/// Looks at the node and at the job's GPUs, and decides what will be done.
fn look(node: &mut impl Node, job: &Job, scheduled: &impl Scheduled) -> Result<Looked, Failure> {
    expect_no_suspicion(node, job)?;
    expect_no_waiting_drain(node, job)?;
    node.prepare_nvml(&[]);
    expect_attached_tasks(node, job, scheduled)?;
    let devices = scheduled.devices()?;
    let inventory = node.inventory()?;
    let (settings, plan) = decide(&Case {
        config: &job.config,
        node: &job.node,
        asked: &job.asked,
        uid: job.user.uid,
        devices: &devices,
        inventory: &inventory,
    })?;
    node.check_control(&settings.control)?;
    Ok(Looked {
        settings,
        plan,
        devices,
        inventory,
    })
}

/// Whether `job` ended during a start that has done nothing yet; then its directory goes, since no other end comes for it.
fn is_over(node: &mut impl Node, job: &JobId) -> bool {
    let over = node.is_cancelled(job);
    if over && let Err(why) = node.remove_job(job) {
        node.log(Severity::Warning, &format!("job {job}: {why}"));
    }
    over
}

/// A node of which something waits for its second look takes no job with MPS until that has been good.
fn expect_no_suspicion(node: &mut impl Node, job: &Job) -> Result<(), Undetermined> {
    for line in evidence::look_again(node, &job.settings) {
        node.complain(&line);
    }
    match node.suspicions().first() {
        None => Ok(()),
        Some(suspicion) => Err(Undetermined::new(
            format!("node '{}'", job.node),
            format!(
                "since job {} {} hangs in the driver: looked at again {PAUSE_S} s after",
                suspicion.at.job, suspicion.what
            ),
        )),
    }
}

/// A node that is to be drained takes no job with MPS until its scheduler knows.
fn expect_no_waiting_drain(node: &mut impl Node, job: &Job) -> Result<(), Undetermined> {
    match node.undelivered(&job.node) {
        None => Ok(()),
        Some(reason) => Err(Undetermined::new(
            format!("node '{}'", job.node),
            format!("a drain of this node waits for its scheduler ({reason})"),
        )),
    }
}

/// Refuses a job whose TM tasks nothing of ours attaches, or says so in the job's own error file, as the site wants.
fn expect_attached_tasks(node: &mut impl Node, job: &Job, scheduled: &impl Scheduled) -> Result<(), Failure> {
    let submission = &job.asked.submission;
    let rule = job.settings.pbs.unattached_tasks;
    if let Some(told) = tasks::decide(scheduled.unattached(), submission.sister, rule)? {
        let text = format!("job {}: {told}", submission.job);
        node.log(Severity::Warning, &text);
        node.complain(&text);
    }
    Ok(())
}

/// Locks the job's directory, once nothing of an earlier prologue stands in it; `None`: the same start is there already.
///
/// A ready and living daemon of a Slurm step is the same start called twice (before Slurm 24.05 remote callbacks run twice)
/// and stays; all else is taken down first (Torque runs a job's prologue again without an epilogue between;
/// docs/facts/pbs.md#sister-nodes).
fn take_over(node: &mut impl Node, job: &Job, until: Until) -> Result<Option<LockGuard>, Failed> {
    let submission = &job.asked.submission;
    let id = &submission.job;
    let held = open(node, job, until)?;
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
    let findings = undo::undo(node, &journal);
    if !findings.allows_start() {
        let why = "what an earlier prologue left cannot be taken down";
        return Err(Failed {
            findings,
            ..Undetermined::new(format!("job {id}"), why).into()
        });
    }
    // The teardown removed the directory, and the lock file with it.
    drop(held);
    Ok(Some(open(node, job, until)?))
}

/// Locks the job's directory; where the caller may not wait, its record says from now on that the start is under way.
fn open(node: &mut impl Node, job: &Job, until: Until) -> Result<LockGuard, Failure> {
    let id = &job.asked.submission.job;
    let held = node.open_job(id)?;
    if until == Until::Announced {
        let reason = "its MPS is being started".to_owned();
        node.write_record(&Record {
            deadline_s: u32::try_from(job.settings.deadline.as_secs()).unwrap_or(u32::MAX),
            ..Record::closed(id.clone(), job.user.uid, RecordState::Starting, reason)
        })?;
    }
    Ok(held)
}

/// Everything that one start holds.
struct Start {
    journal: Journal,
    spec: Spec,
    record: Record,
    verify: bool,
    /// Starts that fail for several users drain the node.
    failed_starts_drain: bool,
    deadline: Deadline,
    began: Instant,
    _held: LockGuard,
}

impl Start {
    fn say_notes(&self, node: &mut impl Node, plan: &Plan) {
        let job = &self.journal.job;
        for warning in &plan.warnings {
            let line = format!("job {job}: {warning}");
            node.log(Severity::Warning, &line);
            // Torque: the job's own error file.
            node.complain(&line);
        }
        for note in &plan.notes {
            node.log(Severity::Info, &format!("job {job}: {note}"));
        }
    }

    /// Does `work`; where it fails, everything that was begun is undone, the job's directory too.
    fn or_undo<N: Node>(
        &mut self,
        node: &mut N,
        work: impl FnOnce(&mut Self, &mut N) -> Result<(), Failure>,
    ) -> Result<(), Failed> {
        work(self, node).map_err(|failure| Failed {
            failure,
            // Before the mark goes with the directory.
            job_ended: node.is_cancelled(&self.journal.job),
            findings: undo::undo(node, &self.journal),
            gpus: self.journal.gpu_names(),
        })
    }

    /// Proves what was started and tells the job's tasks; `alone` is this process, where nobody waits for it.
    fn finish(mut self, node: &mut impl Node, alone: Option<ProcessRef>) -> Result<(), Failed> {
        self.or_undo(node, |start, node| {
            if alone.is_some() {
                start.journal.starter = alone;
                node.write_journal(&start.journal)?;
            }
            start.prove(node)?;
            start.verify(node)?;
            effects::expect_its_job(node, &start.journal.job)?;
            start.tell_tasks(node, RecordState::Ready)
        })?;
        node.audit(&audit::begun(&self.journal));
        Ok(())
    }

    /// A process of its own finishes; this one returns. What that process finds stands in the record.
    fn finish_alone<N: Node>(self, node: &mut N, job: &Job) -> Result<(), Failed> {
        let mut start = Some(self);
        let detached = node.detach(|node, own| {
            if let Some(Err(failed)) = start.take().map(|start| start.finish(node, own)) {
                outcome::of_failure(node, job, &failed, false);
            }
        });
        match start {
            // The lock is the other process's now: freed here it would be free there.
            start if detached => {
                std::mem::forget(start);
                Ok(())
            }
            Some(start) => start.finish(node, None),
            None => Ok(()),
        }
    }

    /// Waits for the proof that every daemon is ready.
    fn prove(&mut self, node: &mut impl Node) -> Result<(), Failure> {
        // Costs nothing: the vendor's programs take longer to come up.
        let user_was_here = node.user_is_here(&self.journal);
        match node.await_ready(&self.journal, &self.spec) {
            Ok(proved) => {
                node.forget_failed_starts();
                // What the driver holds at the job's end counts against the node only if it is one of these.
                self.journal.proved = proved.processes;
                for (daemon, ids) in self.journal.daemons.iter_mut().zip(proved.partitions) {
                    for (partition, id) in daemon.partitions.iter_mut().zip(ids) {
                        partition.id = id;
                    }
                }
                self.record.daemons.clone_from(&self.journal.daemons);
                self.journal.ready_ms = u64::try_from(self.began.elapsed().as_millis()).ok();
                node.write_journal(&self.journal)
            }
            Err(failure) => Err(evidence::of_failed_start(
                node,
                &self.journal,
                user_was_here,
                self.failed_starts_drain,
                failure,
            )),
        }
    }

    /// `mps-probe` as the job's user, through each daemon, where the job asked for it.
    fn verify(&mut self, node: &mut impl Node) -> Result<(), Failure> {
        let daemons = self.journal.daemons.iter().filter(|_| self.verify);
        for daemon in daemons {
            node.probe(&self.journal, daemon, self.deadline)?;
        }
        Ok(())
    }

    fn tell_tasks(&mut self, node: &mut impl Node, state: RecordState) -> Result<(), Failure> {
        self.record.state = state;
        node.write_record(&self.record)
    }
}
