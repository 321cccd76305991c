//! GPUs, plan, effects, proof.

use crate::arguments::{Arguments, Wait};
use crate::job::Job;
use mpsd::job::Journal;
use mpsd::job::carry_out::{self, NotDone};
use mpsd::job::journal::{DrainPolicy, JournalDaemon, VERSION};
use mpsd::job::spec::{OverLimit, Spec, SpecDaemon};
use mpsd::job::undo::{self, Findings};
use mpsd::node::real::RealNode;
use mpsd::node::{Held, Node, Role, verify};
use mpsd::plan;
use mpsd::plan::decide::{Written, decide};
use mpsd::plan::effects::{Effect, Plan};
use mpsd::scheduler::drain::markers;
use mpsd::scheduler::{self, GpuSource, Input, ThisHost};
use mpsd::sys::deadline::Deadline;
use mpsd::sys::guard::detach;
use mpsd::sys::is_scarcity;
use mpsd_core::config::{DeviceNames, LeftoverClients, MemoryOverLimit, Settings};
use mpsd_core::environment::{JOB, LOG_DIRECTORY, PIPE_DIRECTORY, VISIBLE_DEVICES};
use mpsd_core::failure::{Evidence, Fault, Undetermined};
use mpsd_core::record::{self, Record, RecordDaemon, RecordGpu, State};
use mpsd_core::trusted::open_trusted;
use mpsd_core::{Failure, Inventory, Mode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            findings: Findings::default(),
            gpus: Vec::new(),
        }
    }
}

/// Everything that one start holds.
struct Start<'a> {
    job: &'a Job,
    settings: Settings,
    node: RealNode,
    plan: Plan,
    journal: Journal,
    spec: Spec,
    /// The scheduler named the job's GPUs.
    named: bool,
    _held: Held,
}

/// Gives the job its MPS.
///
/// # Errors
/// What failed, after everything that was begun was undone.
pub fn run(arguments: &Arguments, input: &Input<'_>, job: &Job, deadline: Deadline) -> Result<(), Failed> {
    if let Some(marker) = markers::undelivered(&job.settings.paths, &job.node) {
        let why = format!("a drain of this node waits for its scheduler ({})", marker.reason);
        return Err(Failure::from(Undetermined::new(format!("node '{}'", job.node), why)).into());
    }
    crate::tasks::check(input, job)?;
    let Some(mut start) = Start::prepare(input, job, deadline)? else {
        return Ok(());
    };
    start.begin()?;
    if arguments.wait == Wait::Ready {
        return start.finish(deadline);
    }
    go_on_alone(arguments, start, deadline)
}

/// A process of its own proves the start; this one returns. What it finds stands in the record.
fn go_on_alone(arguments: &Arguments, mut start: Start<'_>, deadline: Deadline) -> Result<(), Failed> {
    let job = start.job;
    let detached = detach(|| {
        if let Err(failed) = start.finish(deadline) {
            crate::outcome::of_detached(arguments, job, &failed, deadline);
        }
    });
    match detached {
        Ok(()) => {
            // The other process uses the NVML worker, the lock and the daemon's report from now on.
            std::mem::forget(start);
            Ok(())
        }
        Err(_) => start.finish(deadline),
    }
}

impl<'a> Start<'a> {
    /// Finds the GPUs and makes the plan; `None`: the same start is there already and stands.
    fn prepare(input: &Input<'_>, job: &'a Job, deadline: Deadline) -> Result<Option<Self>, Failed> {
        let mut node = RealNode::new(job.reach(deadline.remaining()))?;
        let submission = &job.asked.submission;
        let mut devices_input = input.clone();
        devices_input.site = job.site();
        let devices = scheduler::devices(submission, &devices_input, &ThisHost)?;
        let inventory = node.inventory()?;
        let (settings, plan) = decide(&Written {
            config: &job.config,
            node: &job.node,
            submission,
            uid: job.user.uid,
            request: &job.asked.request,
            wording: job.asked.wording,
            devices: &devices,
            inventory: &inventory,
        })?;
        open_trusted(&settings.control).map_err(|e| {
            let (what, why) = ("NVIDIA's MPS control daemon", e.to_string());
            match e.errno().is_some_and(is_scarcity) {
                true => Failure::from(Undetermined::new(what, why)),
                false => Fault::new(Evidence::VendorProgram, what, why).into(),
            }
        })?;
        let mut held = node.open_job(&submission.job)?;
        match earlier(&mut node, job)? {
            Earlier::None => {}
            Earlier::Stands => return Ok(None),
            // The teardown removed the directory and the lock file with it.
            Earlier::TakenDown => held = node.open_job(&submission.job)?,
        }
        let journal = journal(job, &settings, &plan, &inventory);
        let spec = spec(job, &settings, &plan, &journal, deadline);
        for note in &plan.notes {
            node.log(&format!("job {}: {note}", submission.job));
        }
        Ok(Some(Self {
            job,
            settings,
            node,
            plan,
            journal,
            spec,
            named: matches!(devices.gpus, GpuSource::Listed(_)),
            _held: held,
        }))
    }

    fn begin(&mut self) -> Result<(), Failed> {
        self.write_record(State::Starting)
            .map_err(|failure| self.undone(failure))?;
        carry_out::begin(&mut self.node, &mut self.journal, &self.spec).map_err(|failed| self.failed(*failed))
    }

    fn finish(&mut self, deadline: Deadline) -> Result<(), Failed> {
        carry_out::prove(&mut self.node, &self.journal, &self.spec).map_err(|failed| self.failed(*failed))?;
        if self.plan.verify
            && let Err(failure) = self.verify(deadline)
        {
            return Err(self.undone(failure));
        }
        self.write_record(State::Ready)
            .map_err(|failure| self.undone(failure))?;
        self.node.log(&format!(
            "job {}: MPS ready for {}",
            self.journal.job, self.journal.user
        ));
        Ok(())
    }

    /// `mps-probe` as the job's user, through each daemon.
    fn verify(&mut self, deadline: Deadline) -> Result<(), Failure> {
        for (plan, place) in self.plan.daemons.iter().zip(&self.journal.daemons) {
            let gpus: Vec<&str> = plan.gpus.iter().map(|g| g.as_str()).collect();
            let variables = [
                (PIPE_DIRECTORY, place.pipe.display().to_string()),
                (LOG_DIRECTORY, place.log.display().to_string()),
                (VISIBLE_DEVICES, gpus.join(",")),
                (JOB, self.journal.job.as_str().to_owned()),
            ];
            verify::probe(&self.node, &self.journal, &variables, deadline)?;
        }
        Ok(())
    }

    /// Undoes all that was begun, the job's directory too.
    fn undone(&mut self, failure: Failure) -> Failed {
        let findings = undo::undo(&mut self.node, &self.journal);
        self.failed(NotDone { failure, findings })
    }

    fn failed(&self, failed: NotDone) -> Failed {
        let gpus = self
            .journal
            .gpus
            .iter()
            .map(|g| g.uuid.as_str().to_owned())
            .collect();
        Failed {
            failure: failed.failure,
            findings: failed.findings,
            gpus,
        }
    }

    fn write_record(&mut self, state: State) -> Result<(), Failure> {
        let journal = &self.journal;
        let record = Record {
            version: record::VERSION,
            job: journal.job.clone(),
            uid: journal.uid,
            state,
            reason: None,
            kind: None,
            exclusive: journal
                .plan
                .iter()
                .any(|effect| matches!(effect, Effect::SetComputeMode { .. })),
            deadline_s: u32::try_from(self.settings.deadline.as_secs()).unwrap_or(u32::MAX),
            per_gpu: self.job.asked.request.mode == Mode::PerGpu,
            request: Some(self.job.asked.request.clone()),
            named: self.named,
            gpus: journal.gpus.clone(),
            daemons: journal
                .daemons
                .iter()
                .zip(&self.plan.daemons)
                .map(|(d, plan)| RecordDaemon {
                    gpus: d.gpus.clone(),
                    pipe: d.pipe.clone(),
                    log: d.log.clone(),
                    threads: plan.threads,
                    memory: plan.memory.clone(),
                })
                .collect(),
            rank_threads: self.plan.rank_threads.clone(),
            rank_memory: self.plan.rank_memory.clone(),
            uuids: self.settings.cuda_visible_devices == DeviceNames::Uuid,
        };
        self.node.write_record(&record)
    }
}

/// What an earlier prologue of this job left.
enum Earlier {
    None,
    Stands,
    TakenDown,
}

/// A living daemon of a Slurm step is the same start called twice (before Slurm 24.05 remote callbacks run twice) and
/// stays; all else is taken down first (Torque runs a job's prologue again without an epilogue between; facts:
/// pbs-live).
fn earlier(node: &mut RealNode, job: &Job) -> Result<Earlier, Failed> {
    let id = &job.asked.submission.job;
    let Some(journal) = node.read_journal(id)? else {
        return Ok(Earlier::None);
    };
    let alive = node
        .members(&journal)
        .iter()
        .any(|m| m.role == Role::Control && !m.is_defunct());
    if job.asked.submission.step && alive && journal.uid == job.user.uid {
        return Ok(Earlier::Stands);
    }
    node.log(&format!(
        "job {id}: an earlier prologue left its MPS: taken down first"
    ));
    let findings = undo::undo(node, &journal);
    if findings.is_clean() {
        return Ok(Earlier::TakenDown);
    }
    let failure = Undetermined::new(
        format!("job {id}"),
        "what an earlier prologue left cannot be taken down",
    );
    Err(Failed {
        failure: failure.into(),
        findings,
        gpus: Vec::new(),
    })
}

fn journal(job: &Job, settings: &Settings, plan: &Plan, inventory: &Inventory) -> Journal {
    let paths = settings.paths.job(&plan.job);
    let count = plan.daemons.len();
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
        gpus: plan::indexed(plan, inventory)
            .map(|(index, uuid)| RecordGpu {
                index,
                uuid: uuid.clone(),
            })
            .collect(),
        daemons: plan
            .daemons
            .iter()
            .enumerate()
            .map(|(n, d)| JournalDaemon {
                gpus: d.gpus.clone(),
                pipe: paths.pipe(n, count),
                log: paths.log(n, count),
            })
            .collect(),
        control: settings.control.clone(),
        nvml: settings.nvml.clone(),
        cgroup: None,
        supervisor: None,
        drain: DrainPolicy {
            enabled: settings.drain.enabled,
            prefix: settings.drain.prefix.clone(),
            on_defunct: false,
            slurm_conf: std::env::var("SLURM_CONF").ok(),
        },
        kill_clients: settings.leftover_clients == LeftoverClients::Kill,
        began: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs(),
    }
}

fn spec(job: &Job, settings: &Settings, plan: &Plan, journal: &Journal, deadline: Deadline) -> Spec {
    // A third of the whole is kept for the rollback.
    let start = deadline
        .remaining()
        .saturating_sub(settings.deadline / 3)
        .max(Duration::from_secs(1));
    let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    Spec {
        job: plan.job.as_str().to_owned(),
        uid: job.user.uid,
        control: settings.control.clone(),
        nvml: settings.nvml.clone(),
        daemons: plan
            .daemons
            .iter()
            .zip(&journal.daemons)
            .map(|(plan, place)| SpecDaemon {
                gpus: plan.gpus.clone(),
                pipe: place.pipe.clone(),
                log: place.log.clone(),
                threads: plan.threads,
                memory: plan.memory.clone(),
                priority: plan.priority,
            })
            .collect(),
        start_ms: ms(start),
        command_ms: ms(start / 2),
        over_limit: match settings.memory_over_limit {
            MemoryOverLimit::Ignore => OverLimit::Off,
            MemoryOverLimit::Log => OverLimit::Log,
            MemoryOverLimit::Terminate => OverLimit::Terminate,
        },
    }
}
