//! The node itself.

use super::files::{Tree, paths};
use mpsd::job::Account;
use mpsd::job::journal::{Journal, ProcessRef};
use mpsd::job::node::{Role, Rung, Thread, Waiting};
use mpsd::job::report::JobReport;
use mpsd_core::failure::FailureKind;
use mpsd_core::paths::JOURNAL;
use mpsd_core::record::{Record, RecordState};
use mpsd_core::{ComputeMode, GpuUuid, Inventory, JobId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Living {
    pub role: Role,
    pub job: JobId,
    pub uid: u32,
    /// The GPUs on which it has a context; for `mpsd`, those of its server.
    pub gpus: Vec<GpuUuid>,
    /// The highest rung of the ladder that it survives.
    pub survives: Option<Rung>,
    pub state: char,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct World {
    pub inventory: Inventory,
    /// The compute modes other than DEFAULT.
    pub modes: BTreeMap<GpuUuid, ComputeMode>,
    /// The files: everything that root keeps.
    pub files: Tree,
    pub starter: Option<i32>,
    pub starter_ended: bool,
    pub cgroups: BTreeSet<PathBuf>,
    pub processes: BTreeMap<i32, Living>,
    pub foreign: Vec<(GpuUuid, i32)>,
    pub stubborn: Option<Rung>,
    /// The threads of the survivors, in one look after the other; the last look stays.
    pub looks: Vec<Vec<Thread>>,
    /// `None`: one of them cannot be read in time.
    pub waiting: Option<Vec<Waiting>>,
    pub silent: bool,
    pub now: u64,
    /// This many more looks find a process of the user's besides the job's own.
    pub user_is_seen: u32,
    /// No process starts on this node: `mpsd` ends at once.
    pub stillborn: bool,
    pub has_cgroups: bool,
    /// A start cannot get a process of its own.
    pub undivided: bool,
    /// A drain of this node that its scheduler has not received.
    pub undelivered: Option<String>,
    pub deaf: bool,
    pub drains: Vec<String>,
    pub remarks: Vec<String>,
    pub requeued: Vec<JobId>,
    pub no_room: bool,
    pub proved: BTreeSet<JobId>,
    pub waits: u32,
    pub complaints: Vec<String>,
    /// The reports of jobs that have ended: they stay on purpose.
    pub reports: Vec<JobReport>,
    pub failed: Vec<FailureKind>,
    /// Drains that were counted beside those of reports.
    pub drained: usize,
    pub log: Vec<String>,
    pub held: BTreeSet<PathBuf>,
    pub spawned: i32,
}

impl World {
    pub fn new(inventory: Inventory) -> Self {
        let paths = paths();
        let run = paths.run().to_owned();
        let directories = [run, paths.jobs(), paths.gpus(), paths.shared()];
        Self {
            inventory,
            files: directories.map(|path| (path, None)).into(),
            has_cgroups: true,
            waiting: Some(Vec::new()),
            spawned: 1000,
            ..Self::default()
        }
    }

    pub fn text(&self, path: &Path) -> Option<String> {
        let bytes = self.files.get(path)?.clone();
        bytes.map(|bytes| String::from_utf8(bytes).expect("text"))
    }

    pub fn put(&mut self, path: PathBuf, text: impl Into<Vec<u8>>) {
        self.files.insert(path, Some(text.into()));
    }

    pub fn has_job(&self, job: &JobId) -> bool {
        self.files.contains_key(paths().job(job).directory())
    }

    pub fn journal(&self, job: &JobId) -> Option<Journal> {
        let text = self.text(&paths().job(job).file(JOURNAL))?;
        Some(Journal::parse(&text).expect("a journal"))
    }

    pub fn record(&self, job: &JobId) -> Option<Record> {
        let text = self.text(&paths().job(job).record())?;
        Some(Record::parse(&text).expect("a record"))
    }

    pub fn state(&self, job: &JobId) -> Option<RecordState> {
        self.record(job).map(|record| record.state)
    }

    pub fn users_directories(&self, job: &JobId) -> usize {
        let paths = paths().job(job);
        let below = |path: &Path| path.parent() == Some(paths.directory());
        let all = self.files.iter();
        all.filter(|(path, entry)| below(path) && entry.is_none())
            .count()
    }

    pub fn accounts(&self) -> Tree {
        let mut files = self.files.clone();
        files.retain(|path, _| path.starts_with(paths().gpus()));
        files
    }

    pub fn enter(&mut self, gpu: &GpuUuid, account: &Account) {
        let text = serde_json::to_vec_pretty(account).expect("an account");
        self.put(paths().gpu(gpu), text);
        self.put(paths().gpus().join(format!(".{gpu}.lock")), "");
    }

    pub fn spawn(&mut self, living: Living) -> i32 {
        self.spawned += 1;
        self.processes.insert(self.spawned, living);
        self.spawned
    }

    pub fn set_mode(&mut self, gpu: &GpuUuid, mode: ComputeMode) {
        self.modes.insert(gpu.clone(), mode);
        self.modes.retain(|_, mode| *mode != ComputeMode::Default);
    }

    pub fn mode(&self, gpu: &GpuUuid) -> ComputeMode {
        let mode = self.modes.get(gpu).copied();
        mode.unwrap_or(ComputeMode::Default)
    }

    pub fn has_process(&self, job: &JobId, is: impl Fn(&Living) -> bool) -> bool {
        self.processes.values().any(|p| p.job == *job && is(p))
    }

    /// A living `mpsd` starts what its job still lacks, and ends if its directories are gone.
    pub fn settle(&mut self) {
        let mut supervisors = self.processes.clone();
        supervisors.retain(|_, p| p.role == Role::Supervisor && p.state == 'S');
        for (pid, mpsd) in supervisors {
            if self.users_directories(&mpsd.job) == 0 {
                self.processes.remove(&pid);
                continue;
            }
            for role in [Role::Control, Role::Server] {
                if self.stillborn || self.has_process(&mpsd.job, |p| p.role == role) {
                    continue;
                }
                let mut started = mpsd.clone();
                if role == Role::Control {
                    started.gpus.clear();
                }
                self.spawn(Living { role, ..started });
            }
        }
    }

    /// What the tests compare: what a job may change on the node.
    pub fn picture(&self) -> Self {
        let mut files = self.files.clone();
        files.retain(|path, _| path.parent() != Some(paths().run()));
        Self {
            inventory: self.inventory.clone(),
            modes: self.modes.clone(),
            files,
            cgroups: self.cgroups.clone(),
            processes: self.processes.clone(),
            foreign: self.foreign.clone(),
            held: self.held.clone(),
            ..Self::default()
        }
    }
}

/// Different worlds, each with a name and how often it occurred. What follows depends only on the
/// world, so an equal world proves the same.
#[derive(Debug, Default)]
pub struct Worlds(Vec<(String, World, u64)>);

impl Worlds {
    /// Whether it is the first of its kind.
    pub fn add(&mut self, name: &str, world: &World) -> bool {
        // The latest first: at most points nothing has changed since the last one.
        let same = self.0.iter_mut().rev().find(|(_, other, _)| other == world);
        if let Some((_, _, times)) = same {
            *times += 1;
            return false;
        }
        self.0.push((name.to_owned(), world.clone(), 1));
        true
    }

    pub fn iter(&self) -> impl Iterator<Item = &(String, World, u64)> {
        self.0.iter()
    }
}

/// Pids are never reused here.
pub fn reference(pid: i32) -> ProcessRef {
    ProcessRef {
        pid,
        start_time: pid.unsigned_abs().into(),
    }
}
