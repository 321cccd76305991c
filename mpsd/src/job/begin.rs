//! The begin of a job: [`start`] is all that a prologue does, a step a line.

use super::effects;
use super::evidence;
use super::journal::{DrainPolicy, Journal, VERSION};
use super::node::{Held, Node, Role, Severity};
use super::outcome;
use super::spec::{OverLimit, Spec};
use super::undo::{self, Findings};
use crate::plan::effects::{Effect, Plan};
use crate::plan::{Asked, Case, decide, tasks};
use crate::scheduler::drain::Place;
use crate::scheduler::{Devices, GpuSource, Site, Unattached};
use crate::sys::deadline::Deadline;
use mpsd_core::config::{Config, DeviceNames, LeftoverClients, MemoryOverLimit, Settings};
use mpsd_core::failure::Undetermined;
use mpsd_core::record::{self, Record, State};
use mpsd_core::{Failure, Mode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A user of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Login name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
}

/// A job that asked, with all that is known before its GPUs are looked at.
#[derive(Debug, Clone)]
pub struct Job {
    /// What it asked for.
    pub asked: Asked,
    /// The file with the settings.
    pub config: Config,
    /// What is in force on this node, whatever its GPUs are.
    pub settings: Settings,
    /// Its user.
    pub user: User,
    /// The node's name in the scheduler.
    pub node: String,
    /// Where its scheduler lives.
    pub site: Site,
    /// A refusal or a failure is left on the node for the job's tasks to read.
    pub record: bool,
    /// The whole start must have ended by then.
    pub deadline: Deadline,
}

impl Job {
    /// Its node in the scheduler.
    pub fn place(&self) -> Place<'_> {
        Place {
            scheduler: self.asked.submission.scheduler,
            site: self.site.clone(),
            node: &self.node,
        }
    }
}

/// What the scheduler says of the job's tasks and devices when it is asked.
pub trait Scheduled {
    /// Why tasks of the job could run outside its MPS, if they could.
    fn unattached(&self) -> Option<Unattached>;
    /// Its GPUs and tasks on this node.
    ///
    /// # Errors
    /// As [`crate::scheduler::devices()`].
    fn devices(&self) -> Result<Devices, Failure>;
}

/// When the prologue returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// When the daemons are proved ready.
    Ready,
    /// When they are being started; a process of its own proves them, and the record tells.
    Started,
}

/// What came of it.
#[derive(Debug)]
pub struct Begun {
    /// The prologue's exit code.
    pub code: u8,
    /// The failure that it stands for.
    pub failed: Option<Failed>,
}

/// A start that failed, with what its rollback found.
#[derive(Debug)]
pub struct Failed {
    /// Why.
    pub failure: Failure,
    /// What the rollback found; faults in here drain as well.
    pub findings: Findings,
    /// The job's GPUs, as far as they were known.
    pub gpus: Vec<String>,
}

impl<F: Into<Failure>> From<F> for Failed {
    fn from(failure: F) -> Self {
        Self {
            failure: failure.into(),
            findings: Findings::default(),
            gpus: Vec::new(),
        }
    }
}

/// Gives the job its MPS; where that fails, does what the failure leads to.
pub fn begin<N: Node>(node: &mut N, job: &Job, scheduled: &impl Scheduled, until: Until) -> Begun {
    match start(node, job, scheduled, until) {
        Ok(()) => Begun {
            code: 0,
            failed: None,
        },
        Err(failed) => Begun {
            code: outcome::of_failure(node, job, &failed, true),
            failed: Some(failed),
        },
    }
}

fn start<N: Node>(node: &mut N, job: &Job, scheduled: &impl Scheduled, until: Until) -> Result<(), Failed> {
    expect_no_waiting_drain(node, job)?;
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
    let Some(held) = take_over(node, job)? else {
        return Ok(());
    };
    let mut start = Start::new(job, &settings, &plan, held);
    start.record.named = matches!(devices.gpus, GpuSource::Listed(_) | GpuSource::Numbered(_));
    start.record.devices = devices.gpus.to_count(&inventory);
    start.say_notes(node, &plan.notes);
    start.or_undo(node, |start, node| {
        start.tell_tasks(node, State::Starting)?;
        effects::carry_out(node, &mut start.journal, &start.spec)
    })?;
    match until {
        Until::Ready => start.finish(node),
        Until::Started => start.finish_alone(node, job),
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
    if let Some(told) = tasks::decide(scheduled.unattached(), submission.phase, rule)? {
        let text = format!("job {}: {told}", submission.job);
        node.log(Severity::Warning, &text);
        node.complain(&text);
    }
    Ok(())
}

/// Locks the job's directory, once nothing of an earlier prologue stands in it; `None`: the same start is there already.
///
/// A living daemon of a Slurm step is the same start called twice (before Slurm 24.05 remote callbacks run twice) and
/// stays; all else is taken down first (Torque runs a job's prologue again without an epilogue between;
/// docs/facts/pbs.md#sister-nodes).
fn take_over(node: &mut impl Node, job: &Job) -> Result<Option<Held>, Failed> {
    let submission = &job.asked.submission;
    let id = &submission.job;
    let held = node.open_job(id)?;
    let Some(journal) = node.read_journal(id)? else {
        return Ok(Some(held));
    };
    let mut members = node.members(&journal).into_iter();
    let alive = members.any(|m| m.role == Role::Control && !m.is_defunct());
    if submission.step && alive && journal.uid == job.user.uid {
        return Ok(None);
    }
    let line = format!("job {id}: an earlier prologue left its MPS: taken down first");
    node.log(Severity::Info, &line);
    let findings = undo::undo(node, &journal);
    if !findings.is_clean() {
        let why = "what an earlier prologue left cannot be taken down";
        return Err(Failed {
            findings,
            ..Undetermined::new(format!("job {id}"), why).into()
        });
    }
    // The teardown removed the directory, and the lock file with it.
    drop(held);
    Ok(Some(node.open_job(id)?))
}

/// Everything that one start holds.
struct Start {
    journal: Journal,
    spec: Spec,
    record: Record,
    verify: bool,
    deadline: Deadline,
    _held: Held,
}

impl Start {
    fn new(job: &Job, settings: &Settings, plan: &Plan, held: Held) -> Self {
        Self {
            journal: journal(job, settings, plan),
            spec: spec(settings, plan, job.deadline),
            record: record(job, settings, plan),
            verify: plan.verify,
            deadline: job.deadline,
            _held: held,
        }
    }

    fn say_notes(&self, node: &mut impl Node, notes: &[String]) {
        for note in notes {
            node.log(Severity::Info, &format!("job {}: {note}", self.journal.job));
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
            findings: undo::undo(node, &self.journal),
            gpus: self.journal.gpu_names(),
        })
    }

    fn finish(mut self, node: &mut impl Node) -> Result<(), Failed> {
        self.or_undo(node, |start, node| {
            start.prove(node)?;
            start.verify(node)?;
            start.tell_tasks(node, State::Ready)
        })?;
        let journal = &self.journal;
        let line = format!("job {}: MPS ready for {}", journal.job, journal.user);
        node.log(Severity::Info, &line);
        Ok(())
    }

    /// A process of its own finishes; this one returns. What that process finds stands in the record.
    fn finish_alone<N: Node>(self, node: &mut N, job: &Job) -> Result<(), Failed> {
        let mut start = Some(self);
        let detached = node.detach(|node| {
            if let Some(Err(failed)) = start.take().map(|start| start.finish(node)) {
                outcome::of_failure(node, job, &failed, false);
            }
        });
        match start {
            // The lock is the other process's now: freed here it would be free there.
            start if detached => {
                std::mem::forget(start);
                Ok(())
            }
            Some(start) => start.finish(node),
            None => Ok(()),
        }
    }

    /// Waits for the proof that every daemon is ready.
    fn prove(&mut self, node: &mut impl Node) -> Result<(), Failure> {
        // Costs nothing: the vendor's programs take longer to come up.
        let user_was_here = node.user_is_here(&self.journal);
        match node.await_ready(&self.journal, &self.spec) {
            Ok(()) => {
                node.forget_failed_starts();
                Ok(())
            }
            Err(failure) => Err(evidence::of_failed_start(
                node,
                &self.journal,
                user_was_here,
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

    fn tell_tasks(&mut self, node: &mut impl Node, state: State) -> Result<(), Failure> {
        self.record.state = state;
        node.write_record(&self.record)
    }
}

fn journal(job: &Job, settings: &Settings, plan: &Plan) -> Journal {
    Journal {
        version: VERSION,
        job: plan.job.clone(),
        scheduler: job.asked.submission.scheduler,
        node: job.node.clone(),
        user: job.user.name.clone(),
        uid: job.user.uid,
        gid: job.user.gid,
        plan: plan.effects.clone(),
        begun: 0,
        gpus: plan.gpus.clone(),
        daemons: plan.daemons.clone(),
        control: settings.control.clone(),
        nvml: settings.nvml.clone(),
        cgroup: None,
        supervisor: None,
        drain: DrainPolicy::new(
            settings.drain.enabled,
            settings.drain.prefix.clone(),
            job.site.slurm_conf.clone(),
        ),
        kill_clients: settings.leftover_clients == LeftoverClients::Kill,
        began: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs(),
    }
}

fn record(job: &Job, settings: &Settings, plan: &Plan) -> Record {
    let exclusive = |effect: &Effect| matches!(effect, Effect::SetComputeMode { .. });
    Record {
        version: record::VERSION,
        job: plan.job.clone(),
        uid: job.user.uid,
        state: State::Starting,
        reason: None,
        kind: None,
        exclusive: plan.effects.iter().any(exclusive),
        deadline_s: u32::try_from(settings.deadline.as_secs()).unwrap_or(u32::MAX),
        per_gpu: job.asked.request.mode == Mode::PerGpu,
        request: Some(job.asked.request.clone()),
        named: false,
        gpus: plan.gpus.clone(),
        devices: Vec::new(),
        daemons: plan.daemons.clone(),
        rank_threads: plan.rank_threads.clone(),
        rank_memory: plan.rank_memory.clone(),
        uuids: settings.cuda_visible_devices == DeviceNames::Uuid,
    }
}

fn spec(settings: &Settings, plan: &Plan, deadline: Deadline) -> Spec {
    // A third of the whole is kept for the rollback.
    let start = deadline
        .remaining()
        .saturating_sub(settings.deadline / 3)
        .max(Duration::from_secs(1));
    let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    Spec {
        job: plan.job.as_str().to_owned(),
        uid: plan.uid,
        control: settings.control.clone(),
        nvml: settings.nvml.clone(),
        daemons: plan.daemons.clone(),
        start_ms: ms(start),
        command_ms: ms(start / 2),
        over_limit: match settings.memory_over_limit {
            MemoryOverLimit::Ignore => OverLimit::Off,
            MemoryOverLimit::Log => OverLimit::Log,
            MemoryOverLimit::Terminate => OverLimit::Terminate,
        },
    }
}
