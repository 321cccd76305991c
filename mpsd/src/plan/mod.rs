//! Request + settings + inventory → plan, or the reason why not. Pure: no I/O, no clock.

pub mod auto;
mod draft;
pub mod effects;
mod gpus;
mod limits;
pub mod tasks;

pub use draft::Asked;

use crate::plan::draft::Draft;
use crate::plan::effects::{Effect, Plan};
use crate::plan::limits::Limits;
use batch::{Devices, Exclusive, GpuSource, Submission};
use mpsd_core::bind::Bind;
use mpsd_core::by_site::BySite;
use mpsd_core::config::{Cgroup, ComputeModeRule, Settings};
use mpsd_core::paths::JobPaths;
use mpsd_core::record::{AutoDivisors, Daemon, Record, RecordGpu, RecordState};
use mpsd_core::request::{MemoryLimit, Mode, Threads};
use mpsd_core::{ComputeMode, Failure, Gpu, Inventory, JobId, Refusal};
use std::collections::BTreeSet;

#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    pub settings: &'a Settings,
    pub submission: &'a Submission,
    pub asked: &'a Asked,
    pub uid: u32,
    pub devices: &'a Devices,
    pub inventory: &'a Inventory,
}

/// # Errors
/// A refusal; a fault or undetermined if a GPU of the job is not there.
pub fn decide(case: &Case<'_>) -> Result<Plan, Failure> {
    let mut draft = draft(case)?;
    draft.check_shared()?;
    let mut notes = draft.forget_auto_of_site();
    (draft.bind, draft.names) = gpus::binding(&draft)?;
    notes.extend(draft.separate_daemons());
    let (bind, per_gpu) = (draft.bind, draft.filled.mode == Mode::PerGpu);
    draft.meeting = draft.tasks_that_meet(|tasks, gpus| bind.most_on_a_gpu(per_gpu, tasks, gpus));
    draft.check_generations()?;
    if case.asked.by_site {
        auto::expect_unnoticed(&draft, case.devices)?;
    }
    let too_many_tasks = draft.check_tasks()?;
    let limits = draft.limits()?;
    let daemons = match draft.shared {
        true => draft.shared_daemons(case.uid)?,
        false => draft.daemons(&limits, &case.settings.paths.job(&case.submission.job)),
    };
    let begin = |daemon: &Daemon| draft.shared_plan(case.uid, daemon);
    let shared = daemons.iter().filter(|_| draft.shared).map(begin).collect();
    let effects = effects(case, &draft, daemons.len(), &mut notes);
    let auto = auto::found(&case.asked.request, case.devices, case.settings);
    notes.extend(auto.clone());
    let exclusive = |effect: &Effect| matches!(effect, Effect::SetComputeMode { .. });
    let warnings = [too_many_tasks, without_rank(case, &draft)];
    let record = Record {
        reason: auto,
        exclusive: effects.iter().any(exclusive),
        warnings: warnings.into_iter().flatten().collect(),
        ..record(case, &draft, &limits, daemons)
    };
    Ok(Plan {
        record,
        effects,
        shared_plans: shared,
        minors: minors(draft.gpus.iter().copied()),
        notes,
        then: draft.filled.plan_lines().collect(),
    })
}

fn draft<'a>(case: &Case<'a>) -> Result<Draft<'a>, Failure> {
    let settings = case.settings;
    let gpus = gpus::of_job(case.devices, case.inventory, settings.gpus_unknown)?;
    let clients = |gpu: &&Gpu| case.inventory.clients(gpu, settings.max_clients);
    let (may_share, part) = match case.devices.exclusive {
        Exclusive::Shared(part) => (true, part),
        Exclusive::GpusAlone | Exclusive::Unknown => (settings.shared_gpus, None),
    };
    Ok(Draft {
        asked: case.asked,
        filled: settings.with_defaults(&case.asked.request),
        settings,
        inventory: case.inventory,
        clients: gpus.iter().map(clients).min(),
        gpus,
        tasks: case.devices.tasks_on_node.filter(|tasks| *tasks > 0),
        meeting: None,
        may_share,
        shared: may_share && case.asked.request.mode != Mode::Own,
        part,
        bind: Bind::DEFAULT,
        names: settings.cuda_visible_devices,
    })
}

fn record(case: &Case<'_>, draft: &Draft<'_>, limits: &Limits, daemons: Vec<Daemon>) -> Record {
    let (submission, settings, given) = (case.submission, case.settings, &case.devices.gpus);
    let job = submission.job.clone();
    let (by_site, shared, filled) = (case.asked.by_site, draft.shared, &draft.filled);
    let memory_parts = limits.divides_memory_by(&draft.gpus);
    // Without CUDA_DEVICE_ORDER, CUDA counts the fastest GPU first.
    let mut pairs = case.inventory.gpus.windows(2);
    let alike = pairs.all(|pair| pair[0].name == pair[1].name);
    let mut places = draft.gpus.iter().zip(0..);
    Record {
        sluid: submission.sluid.clone(),
        deadline_s: u32::try_from(settings.deadline.as_secs()).unwrap_or(u32::MAX),
        per_gpu: filled.mode == Mode::PerGpu,
        shared,
        request: Some(case.asked.request.clone()),
        named: matches!(given, GpuSource::Listed(_) | GpuSource::Numbered(_)),
        gpus: draft.gpus.iter().map(record_gpu).collect(),
        devices: given.to_count(case.inventory),
        daemons,
        rank_threads: limits.rank_threads(shared),
        rank_memory: limits.rank_memory(shared),
        // Nobody watches the memory of a job that its site brought in: it runs as without MPS.
        job_memory: match by_site {
            true => Vec::new(),
            false => draft.job_memory(limits),
        },
        divided: AutoDivisors {
            threads: draft
                .meeting
                .filter(|_| filled.threads == Some(Threads::Auto) && !shared),
            memory: memory_parts.filter(|_| filled.memory == Some(MemoryLimit::Auto) && !shared),
        },
        names: Some(draft.names),
        same_numbers: alike && places.all(|(gpu, place)| gpu.index == place),
        bind: Some(draft.bind),
        clients: draft.clients,
        by_site: by_site.then(|| BySite {
            tasks: draft.tasks.unwrap_or(0),
            if_tasks_meet: case.asked.request.mode == Mode::Auto && !shared,
        }),
        takes_turns: draft.may_share && !shared,
        report: filled.report == Some(true) && !by_site,
        // The user of an interactive allocation can ask `mpsctl status`.
        summary: filled.report.is_none()
            && !by_site
            && !submission.interactive
            && settings.reports.keep > 0,
        script: submission.script,
        ..Record::without_mps(job, case.uid, RecordState::Starting, String::new())
    }
}

impl Draft<'_> {
    /// A process sees one MIG device, and a shared MPS has one GPU: several have a daemon for each.
    fn separate_daemons(&mut self) -> Option<String> {
        let has_mig = gpus::has_mig(&self.gpus);
        let is_separate = self.gpus.len() < 2 || self.filled.mode == Mode::PerGpu;
        if is_separate || !(has_mig || self.shared) {
            return None;
        }
        self.filled.mode = Mode::PerGpu;
        let note =
            "one daemon for each MIG device, and one of them for each task: a process sees no more";
        has_mig.then(|| note.to_owned())
    }

    fn daemons(&self, limits: &Limits, paths: &JobPaths) -> Vec<Daemon> {
        let size = match self.filled.mode {
            Mode::PerGpu => 1,
            Mode::PerNode | Mode::Auto | Mode::Own | Mode::Off => self.gpus.len(),
        };
        let groups = self.gpus.chunks(size.max(1));
        let count = groups.len();
        let daemon = |(n, gpus)| limits.daemon(gpus, paths, n, count);
        groups.enumerate().map(daemon).collect()
    }

    /// They hold the site's ceilings; each job's limits are in its tasks' environment.
    fn shared_daemons(&self, uid: u32) -> Result<Vec<Daemon>, Refusal> {
        let limits = self.ceilings()?;
        let daemon = |gpu: &&Gpu| {
            let paths = self.settings.paths.job(&JobId::shared(uid, &gpu.uuid));
            limits.daemon(&[gpu], &paths, 0, 1)
        };
        Ok(self.gpus.iter().map(daemon).collect())
    }

    fn shared_plan(&self, uid: u32, daemon: &Daemon) -> Plan {
        let gpu = daemon.gpus[0].clone();
        let id = JobId::shared(uid, &gpu);
        let is_its = |known: &&&Gpu| known.uuid == gpu;
        let minors = minors(self.gpus.iter().filter(is_its).copied());
        let gpus = self.gpus.iter().filter(is_its).map(record_gpu).collect();
        let record = Record {
            reason: None,
            gpus,
            daemons: vec![daemon.clone()],
            ..Record::without_mps(id, uid, RecordState::Starting, String::new())
        };
        let effects = daemon_effects(self.settings, 1, vec![Effect::ClaimGpu { gpu }]);
        Plan {
            record,
            effects,
            shared_plans: Vec::new(),
            minors,
            notes: Vec::new(),
            then: Vec::new(),
        }
    }

    /// More tasks than a GPU takes clients: a warning, because not every task is a client.
    fn check_tasks(&self) -> Result<Option<String>, Refusal> {
        let tasks = self.tasks_that_meet(u32::div_ceil).zip(self.clients);
        let Some((tasks, most)) = tasks.filter(|(tasks, most)| tasks > most) else {
            return Ok(None);
        };
        let kind = gpus::kind(&self.gpus);
        let why =
            format!("a {kind} takes {most} MPS clients, and this job has {tasks} tasks on each");
        // Without MPS all tasks would run, so `auto` gives none.
        if self.asked.request.mode == Mode::Auto {
            let what = format!(
                "{} tasks on {} {kind}s",
                self.tasks.unwrap_or(0),
                self.gpus.len()
            );
            return Err(Refusal::new(
                what,
                why,
                format!("at most {most} tasks a {kind}"),
            ));
        }
        Ok(Some(format!(
            "{why}; those beyond fail if all of them use it"
        )))
    }
}

fn minors<'a>(gpus: impl Iterator<Item = &'a Gpu>) -> Vec<u32> {
    let all: Option<BTreeSet<u32>> = gpus.map(|gpu| gpu.minor).collect();
    all.into_iter().flatten().collect()
}

fn record_gpu(gpu: &&Gpu) -> RecordGpu {
    RecordGpu {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        cpus: gpu.cpus.clone(),
        memory_mib: gpu.memory_mib,
    }
}

fn effects(
    case: &Case<'_>,
    draft: &Draft<'_>,
    daemons: usize,
    notes: &mut Vec<String>,
) -> Vec<Effect> {
    if draft.shared {
        let uuids = draft.gpus.iter().map(|gpu| gpu.uuid.clone());
        return uuids.map(|gpu| Effect::JoinShared { gpu }).collect();
    }
    let mut claims = Vec::new();
    for gpu in &draft.gpus {
        let uuid = gpu.uuid.clone();
        claims.push(Effect::ClaimGpu { gpu: uuid });
        match why_mode_stays(case, gpu) {
            None => claims.push(Effect::SetComputeMode {
                gpu: gpu.uuid.clone(),
                mode: ComputeMode::ExclusiveProcess,
            }),
            Some(why) => notes.push(format!("compute mode of {} stays: {why}", gpu.uuid)),
        }
    }
    daemon_effects(draft.settings, daemons, claims)
}

/// The claims come first: a server starts in the mode that root has set.
fn daemon_effects(settings: &Settings, count: usize, claims: Vec<Effect>) -> Vec<Effect> {
    let cgroup = (settings.cgroup != Cgroup::None).then_some(Effect::MakeCgroup);
    let directories = (0..count).map(|daemon| Effect::MakeDirectories { daemon });
    let effects = claims.into_iter().chain(cgroup).chain(directories);
    effects.chain([Effect::StartSupervisor]).collect()
}

fn why_mode_stays(case: &Case<'_>, gpu: &Gpu) -> Option<&'static str> {
    if case.asked.by_site {
        Some("the site gives the job MPS, and its user did not ask")
    } else if gpu.uuid.is_mig() {
        Some("EXCLUSIVE_PROCESS is not for MIG devices")
    } else if case.settings.compute_mode != ComputeModeRule::Exclusive {
        Some("compute_mode = \"keep\"")
    } else if case.submission.step {
        Some("a step does not change it")
    } else {
        match case.devices.exclusive {
            Exclusive::GpusAlone => None,
            _ if case.settings.shared_gpus => Some("shared_gpus = true"),
            Exclusive::Shared(_) => Some("the scheduler lets jobs share the GPU"),
            Exclusive::Unknown => {
                Some("the scheduler does not prove that this job alone holds the GPU")
            }
        }
    }
}

/// Slurm gives a script a rank, other schedulers none.
fn without_rank(case: &Case<'_>, draft: &Draft<'_>) -> Option<String> {
    let per_gpu = draft.filled.mode == Mode::PerGpu && draft.gpus.len() > 1;
    let system = batch::of(case.submission.scheduler);
    let warning = "with a daemon for each GPU a program without a rank sees no GPU: start each rank with \
                   'mpsctl exec -- COMMAND'";
    (per_gpu && !system.facts().has_steps).then(|| warning.to_owned())
}
