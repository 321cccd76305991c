//! Attaches a process to its job's MPS, by the scheduler's variables and root's record.

use super::this_node;
use batch::{Host, Location, Lookup, ThisHost, late_script, scheduled_devices};
use mpsd::job::journal::ProcessRef;
use mpsd::job::store::Store as _;
use mpsd_core::bind::DeviceNames;
use mpsd_core::config::{Settings, directories_alone};
use mpsd_core::environment::{
    self, Change, JOB, LOG_DIRECTORY, MEMORY, OF_SLURM, PIPE_DIRECTORY, THREADS, Task,
    VISIBLE_DEVICES, Visible, counted, devices_without_mps, strip_devices, strip_inherited,
    task_environment,
};
use mpsd_core::failure::{FailureKind, Undetermined};
use mpsd_core::gpu::MIG;
use mpsd_core::ranks::Rank;
use mpsd_core::record::{self, Daemon, Record, RecordState};
use mpsd_core::{Failure, Fault, GpuUuid, JobId, Refusal, by_site, listener, script};
use std::path::Path;

/// A process, and the job that it asks about.
#[derive(Clone, Copy, derive_more::Debug)]
pub struct Caller<'a> {
    pub config: &'a Path,
    pub job: Option<&'a str>,
    #[debug(skip)]
    pub env: Lookup<'a>,
    pub uid: u32,
    /// It is the job's main shell, which has no rank: changes that need one are left out.
    pub main: bool,
    /// It is the job's first process, so that the job's batch script is here by now.
    pub first: bool,
}

pub fn own_variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

pub const NO_JOB: &str = "this is no job: PBS_JOBID and SLURM_JOB_ID are not set";

impl<'a> Caller<'a> {
    pub fn this(config: &'a Path, job: Option<&'a str>) -> Self {
        Self {
            config,
            job,
            env: &own_variable,
            uid: nix::unistd::geteuid().as_raw(),
            main: false,
            first: false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attachment {
    Attached(Vec<Change>),
    /// The changes remove what another job's MPS left in the environment.
    WithoutMps(Vec<Change>),
    /// The same, since `MPS=auto` gives the job none.
    Unneeded(Vec<Change>),
    Unread(Undetermined),
}

impl Attachment {
    pub const NO_JOB: Self = Self::WithoutMps(Vec::new());

    pub fn changes(self) -> Vec<Change> {
        match self {
            Self::Unread(_) => Vec::new(),
            Self::Attached(all) | Self::WithoutMps(all) | Self::Unneeded(all) => all,
        }
    }
}

impl Caller<'_> {
    /// Waits for a record that is `starting`, no longer than it allows.
    ///
    /// # Errors
    /// The job's MPS was refused (refusal) or did not start (undetermined), the caller's share of
    /// it is unknown (refusal), or there is neither a record nor a usable configuration (fault).
    pub(crate) fn find(&self) -> Result<Attachment, Failure> {
        match self.find_or_unread()? {
            Attachment::Unread(unread) => Err(unread.into()),
            found => Ok(found),
        }
    }

    /// The same, but an unreadable record is no error.
    pub(crate) fn find_or_unread(&self) -> Result<Attachment, Failure> {
        let Some(job) = self.ids()?.pop() else {
            return Ok(Attachment::NO_JOB);
        };
        let (settings, broken) = self.settings();
        let stripped = || self.stripped(&job);
        match self.record(&settings) {
            Ok(Some(record)) if record.state == RecordState::Unneeded => {
                Ok(Attachment::Unneeded(stripped()))
            }
            Ok(Some(record)) => match self.attached(&record) {
                Err(_) if record.by_site.is_some() => Ok(Attachment::Unneeded(stripped())),
                attached => Ok(Attachment::Attached(attached?)),
            },
            Err(Failure::Undetermined(unread)) => Ok(Attachment::Unread(unread)),
            Err(failure) => Err(failure),
            Ok(None) => match broken {
                // A broken mpsd.toml may hide a record, but no job's main shell may fail by it.
                Some(fault) if !self.main => Err(fault.into()),
                _ => Ok(Attachment::WithoutMps(stripped())),
            },
        }
    }

    /// Removes what the MPS of a job other than `job` left in the environment.
    pub fn stripped(&self, job: &JobId) -> Vec<Change> {
        let mut changes = strip_inherited(Some(job.as_str()), self.env);
        if self.is_foreign(job) {
            changes.extend(strip_devices(self.env, &|| self.scheduled(job)));
        }
        changes
    }

    fn is_foreign(&self, job: &JobId) -> bool {
        (self.env)(JOB).is_some_and(|other| other != job.as_str())
    }

    fn scheduled(&self, job: &JobId) -> Visible {
        scheduled_devices(job, self.env, &Location::of(&self.settings().0), &ThisHost)
    }

    fn without_mps(&self, job: &JobId) -> Visible {
        devices_without_mps(self.env, &|| self.scheduled(job))
    }

    /// The record of the caller's job, if its MPS is ready, and the caller's rank. Fails as
    /// [`Caller::find`].
    pub fn job_with_mps(&self) -> Result<Option<(Record, Task)>, Failure> {
        let (settings, broken) = self.settings();
        let found = self.record(&settings)?;
        let found = found.filter(|record| record.state != RecordState::Unneeded);
        let Some(record) = found else {
            return broken.map_or(Ok(None), |fault| Err(fault.into()));
        };
        self.must_be_ready(&record)?;
        let task = self.task(&record);
        Ok(Some((record, task)))
    }

    /// The record under the first of the job's ids that has one, once it is no longer `starting`.
    fn record(&self, settings: &Settings) -> Result<Option<Record>, Failure> {
        for id in self.ids()? {
            let path = settings.paths.job(&id).record();
            let unread = |why| Undetermined::new(format!("record '{}'", path.display()), why);
            let found = record::settled(&path, settings.deadline).map_err(unread)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// What its user should know although the job runs. Of a job that did not ask, why OpenPBS' hook
    /// is to leave it out.
    pub(crate) fn warnings_of_job(&self) -> Vec<String> {
        let Ok(Some(record)) = self.record(&self.settings().0) else {
            return Vec::new();
        };
        if record.by_site.is_some() {
            return self.left_out_by_script(&record).into_iter().collect();
        }
        let script = self.late_script(&record);
        let script = script.filter(|_| !record.daemons.is_empty());
        let advice = script.map(|script| script::advice(&script, &record));
        let advice = advice.into_iter().flatten();
        let advice = advice.map(|line| format!("warning: {line}"));
        record.warnings.iter().cloned().chain(advice).collect()
    }

    /// The job's batch script, for its first process: OpenPBS sends it after the job has begun.
    fn late_script(&self, record: &Record) -> Option<String> {
        let location = || Location::of(&self.settings().0);
        self.first.then(|| late_script(&record.job, &location()))?
    }

    fn left_out_by_script(&self, record: &Record) -> Option<String> {
        record.by_site?;
        by_site::of_script(&self.late_script(record)?)
    }

    /// For a process without a rank or for a launcher's first rank. In a Slurm step the
    /// plugin says that a list by local rank is too short.
    pub(crate) fn warnings_of_rank(&self) -> Vec<String> {
        let rank = environment::rank(self.env).map(|(rank, _)| rank);
        let asked = self.job_with_mps().ok().flatten();
        let Some((record, _)) = asked.filter(|(record, _)| record.by_site.is_none()) else {
            return Vec::new();
        };
        let ranks = rank.and_then(|rank| rank.of);
        let mut lines =
            environment::warnings(&record, ranks, rank.map(|rank| rank.local), self.env);
        let first = ranks.filter(|_| rank.is_some_and(|rank| rank.local == 0));
        let repeats = first.and_then(|ranks| environment::repeats(&record, ranks));
        lines.extend(repeats.map(|repeats| format!("job {}: {repeats}", record.job)));
        lines
    }

    pub(crate) fn failed_by_node(&self) -> bool {
        let (settings, _) = self.settings();
        let record = |id: &JobId| record::found(&settings.paths.job(id).record());
        let failed = |id: &JobId| record(id).is_some_and(|record| record.of_node);
        self.ids().is_ok_and(|ids| ids.iter().any(failed))
    }

    pub fn job(&self) -> Option<JobId> {
        self.ids().ok()?.pop()
    }

    /// The ids under which the job may have a record. A Slurm step comes first: it may have a
    /// daemon of its own.
    pub(super) fn ids(&self) -> Result<Vec<JobId>, Refusal> {
        match self.job {
            Some(named) => batch::meant(named, &Location::of(&self.settings().0)),
            None => self.own_ids(),
        }
    }

    /// The same of the job in which the caller is.
    pub(super) fn own_ids(&self) -> Result<Vec<JobId>, Refusal> {
        if let Some(id) = self.var("PBS_JOBID") {
            return Ok(vec![JobId::parse(&id)?]);
        }
        let Some(job) = self.var("SLURM_JOB_ID") else {
            return Ok(Vec::new());
        };
        let job = JobId::parse(&self.component().unwrap_or(job))?;
        let step = self.var("SLURM_STEP_ID");
        let step = step.and_then(|step| job.step(&step).ok());
        Ok(step.into_iter().chain([job]).collect())
    }

    /// Whether it runs on a node of `job`. The shell of salloc may be on another.
    pub(super) fn is_in(&self, job: &JobId) -> bool {
        let is_own = self.own_ids().is_ok_and(|own| own.last() == Some(job));
        is_own && (self.var("PBS_JOBID").is_some() || self.var("SLURMD_NODENAME").is_some())
    }

    /// This component's id, if the job is heterogeneous: ids of components follow the first's.
    fn component(&self) -> Option<String> {
        let number = |name| self.var(name)?.parse::<u32>().ok();
        let (first, size) = (number("SLURM_JOB_ID")?, number("SLURM_HET_SIZE")?);
        let own = number(JOB)?;
        let is_of_it = own.checked_sub(first).is_some_and(|place| place < size);
        is_of_it.then(|| own.to_string())
    }

    fn var(&self, name: &str) -> Option<String> {
        (self.env)(name).filter(|value| !value.is_empty())
    }

    /// If the configuration is unusable, the defaults and why. A missing file is no error.
    pub fn settings(&self) -> (Settings, Option<Fault>) {
        let node = self.var("SLURMD_NODENAME");
        let node = node.unwrap_or_else(|| ThisHost.name());
        match Settings::load(self.config, &node) {
            Ok(settings) => (settings, None),
            Err(error) => {
                let broken = self.config.exists().then(|| error.to_user(&node));
                (directories_alone(self.config, &node), broken)
            }
        }
    }

    /// A job that did not ask does without MPS in doubt.
    fn attached(&self, record: &Record) -> Result<Vec<Change>, Failure> {
        let ranks = environment::rank(self.env).and_then(|(rank, _)| rank.of);
        let by_environment = by_site::by_environment(record, ranks, self.env);
        let by_numbers = |_| by_site::by_numbers(record, counted(record).as_deref());
        let by_numbers = || record.by_site.and_then(by_numbers);
        let by_script = || self.left_out_by_script(record);
        if let Some(why) = by_environment.or_else(by_numbers).or_else(by_script) {
            return Err(Refusal::new(format!("job {}", record.job), why, "").into());
        }
        let mut changes = self.attach(record)?;
        self.expect_daemon(record, &changes)?;
        if record.by_site.is_some() && self.is_foreign(&record.job) {
            changes.extend(strip_devices(self.env, &|| self.scheduled(&record.job)));
        }
        Ok(changes)
    }

    fn attach(&self, record: &Record) -> Result<Vec<Change>, Failure> {
        self.must_be_ready(record)?;
        let task = self.task(record);
        environment::expect_connections(record, task.rank.and_then(|rank| rank.of), self.env)?;
        Ok(match self.main && task.rank.is_none() {
            true => main_shell(record, &task)?,
            false => task_environment(record, &task)?,
        })
    }

    /// Checks that the control daemon of `changes` has not ended. Root checks the process that it
    /// proved, if the journal is readable: in the daemon's directory the user could block it.
    fn expect_daemon(&self, record: &Record, changes: &[Change]) -> Result<(), Undetermined> {
        if self.uid != 0 || record.uid == 0 {
            return listener::expect(changes);
        }
        let (settings, _) = self.settings();
        let Ok(Some(journal)) = this_node(&settings).read_journal(&record.job) else {
            return Ok(());
        };
        let pipes = changes.iter().filter(|c| c.name == PIPE_DIRECTORY);
        let pipes: Vec<_> = pipes.filter_map(|c| c.value.as_deref()).collect();
        // Each daemon's server follows it.
        let proved = journal.proved.iter().step_by(2);
        let mut both = journal.record().daemons.iter().zip(proved);
        let is_gone = |(daemon, process): &(&Daemon, &ProcessRef)| {
            let pipe = daemon.pipe.to_str();
            pipe.is_some_and(|pipe| pipes.contains(&pipe)) && process.open().is_none()
        };
        match both.find(is_gone) {
            None => Ok(()),
            Some((_, process)) => Err(listener::ended(&format!("process {} is gone", process.pid))),
        }
    }

    fn must_be_ready(&self, record: &Record) -> Result<(), Failure> {
        let job = format!("job {}", record.job);
        if self.uid != 0 && record.uid != 0 && record.uid != self.uid {
            return Err(Refusal::new(job, "its MPS is another user's", "").into());
        }
        if self.uid == 0 && record.uid != 0 && self.job.is_none() {
            // Variables that sudo or su kept are no wish of root's to open what the user owns.
            let user = format!("its MPS is that of user {}", record.uid);
            let why = format!("{user}, and root's environment only inherits the job");
            return Err(Refusal::new(job, why, "--job ID, or the job's user").into());
        }
        let reason = record.reason.as_deref().unwrap_or("no reason is recorded");
        match record.state {
            RecordState::Ready | RecordState::Unneeded => Ok(()),
            RecordState::Starting => {
                Err(Undetermined::new(job, "its MPS is not ready in time").into())
            }
            RecordState::Failed if record.kind != Some(FailureKind::Refusal) => {
                Err(Undetermined::new(job, format!("MPS did not start: {reason}")).into())
            }
            RecordState::Refused | RecordState::Failed => {
                Err(Refusal::new(job, format!("MPS refused: {reason}"), "").into())
            }
        }
    }

    fn task(&self, record: &Record) -> Task {
        let counted = counted(record);
        let rank = environment::rank(self.env);
        let is_launched = rank.is_some_and(|(_, name)| name != OF_SLURM);
        let visible = self.by_daemons_numbers(record).or_else(|| {
            let visible = self.visible(record, counted.is_some());
            visible.filter(|list| !self.is_another_nodes(list, record))
        });
        Task {
            rank: rank.map(|(rank, _)| rank),
            bound: rank.is_some_and(|(_, name)| name == OF_SLURM),
            cpus: None,
            visible: visible.filter(|list| !(is_launched && self.is_of_script(list, record))),
            counted,
            inherited_job: (self.env)(JOB),
            // 'qsub -V' carries our list, and sbatch has Slurm set it.
            without_mps: self.var("PBS_JOBID").map(|_| self.without_mps(&record.job)),
            jax_devices: (self.env)(environment::JAX_DEVICES),
        }
    }

    /// An MPI launcher passes its environment, with this list, on to the job's other nodes.
    fn is_another_nodes(&self, visible: &str, record: &Record) -> bool {
        let of_job = (self.env)(JOB).as_deref() == Some(record.job.as_str());
        let entries = || visible.split(',').map(str::trim);
        let here = |entry: &str| record.gpus.iter().any(|gpu| gpu.uuid.as_str() == entry);
        let is_name = |entry: &str| entry.starts_with("GPU-") || entry.starts_with(MIG);
        of_job && entries().all(|entry| is_name(entry) && !here(entry))
    }

    /// Whether we gave these devices to the script or task in which an MPI launcher runs: with a
    /// daemon for each GPU it reaches one, and its ranks spread over all.
    fn is_of_script(&self, visible: &str, record: &Record) -> bool {
        let own = self.daemon(record).filter(|_| record.per_gpu);
        let gpus = own.map(|daemon| daemon.gpus.iter().map(GpuUuid::as_str));
        gpus.is_some_and(|gpus| visible.split(',').eq(gpus))
    }

    fn daemon<'r>(&self, record: &'r Record) -> Option<&'r Daemon> {
        let pipe = self.var(PIPE_DIRECTORY)?;
        let mut daemons = record.daemons.iter();
        daemons.find(|daemon| daemon.pipe == Path::new(&pipe))
    }

    /// The UUIDs of an attached process's devices, if it names them by its daemon's numbers. Other
    /// numbers, as in a task that Torque's mom starts, include one that the daemon does not have.
    fn by_daemons_numbers(&self, record: &Record) -> Option<String> {
        let attached = self.var(JOB).is_some_and(|job| job == record.job.as_str());
        if !attached || record.names() == DeviceNames::Uuid {
            return None;
        }
        let daemon = self.daemon(record)?;
        let uuids = record.gpus.iter().map(|gpu| &gpu.uuid);
        let uuids: Vec<_> = uuids.filter(|uuid| daemon.gpus.contains(uuid)).collect();
        let uuid = |entry: &str| Some(uuids.get(entry.trim().parse::<usize>().ok()?)?.as_str());
        let own = self.var(VISIBLE_DEVICES)?;
        let uuids = own.split(',').map(uuid).collect::<Option<Vec<_>>>()?;
        Some(uuids.join(","))
    }

    /// The devices by UUID or by number. The numbers are CUDA's if `counted`, else the node's.
    /// Under Slurm's ConstrainDevices only `SLURM_STEP_GPUS` has the node's.
    fn visible(&self, record: &Record, counted: bool) -> Option<String> {
        let own = match self.is_foreign(&record.job) {
            true => self.without_mps(&record.job),
            false => (self.env)(VISIBLE_DEVICES),
        };
        let own = own.filter(|list| !list.is_empty())?;
        let is_name = own.contains("GPU-") || own.contains(MIG);
        if counted || is_name || self.var("SLURM_JOB_ID").is_none() {
            return Some(own);
        }
        self.var("SLURM_STEP_GPUS")
            .or_else(|| self.var("SLURM_JOB_GPUS"))
            .or(Some(own))
    }
}

/// The changes for a shell before its ranks are known: the lowest limits of a list by rank. In
/// per-gpu mode with several GPUs the rank decides the daemon. A program without a rank would
/// silently run outside MPS, so it sees no GPU.
fn main_shell(record: &Record, task: &Task) -> Result<Vec<Change>, Refusal> {
    let shared = Record {
        rank_threads: Vec::from_iter(record.rank_threads.iter().min().copied()),
        rank_memory: lowest(&record.rank_memory).into_iter().collect(),
        bind: None,
        ..record.clone()
    };
    let several = record.per_gpu && record.gpus.len() > 1;
    let any = Task {
        rank: (!several).then_some(Rank { local: 0, of: None }),
        ..task.clone()
    };
    let changes = task_environment(&shared, &any);
    if !several || changes.is_ok() {
        return changes;
    }
    let mut changes = vec![Change::set(JOB, record.job.as_str())];
    changes.extend(task.sees(String::new()));
    // Its ranks cannot tell later that these are another job's.
    let inherited = task.inherited_job.as_deref();
    if inherited.is_some_and(|job| job != record.job.as_str()) {
        let foreign = [PIPE_DIRECTORY, LOG_DIRECTORY, THREADS, MEMORY];
        changes.extend(foreign.map(Change::unset));
    }
    Ok(changes)
}

fn lowest(ranks: &[Vec<(GpuUuid, u64)>]) -> Option<Vec<(GpuUuid, u64)>> {
    let least = |gpu: &GpuUuid| {
        let of_gpu = ranks.iter().flatten().filter(|(other, _)| other == gpu);
        of_gpu.map(|(_, mib)| *mib).min()
    };
    let first = ranks.first()?.iter();
    let all = first.filter_map(|(gpu, _)| Some((gpu.clone(), least(gpu)?)));
    Some(all.collect())
}

#[cfg(test)]
#[path = "attach_tests.rs"]
mod tests;
