//! The node itself.

use super::files::{Tree, paths};
use mpsd::job::account::Account;
use mpsd::job::journal::{Journal, ProcessRef};
use mpsd::job::node::{Role, Rung, Thread, Waiting};
use mpsd::job::report::JobReport;
use mpsd_core::failure::FailureKind;
use mpsd_core::record::{Record, RecordState};
use mpsd_core::{ComputeMode, GpuUuid, Inventory, JobId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A process of a job's MPS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Living {
    /// Its place in the three.
    pub role: Role,
    /// Its job.
    pub job: JobId,
    /// Its user.
    pub uid: u32,
    /// The GPUs it has a context on.
    pub gpus: Vec<GpuUuid>,
    /// The highest rung of the ladder that does not end it.
    pub survives: Option<Rung>,
    /// `R`, `S`, `D`, `T`, `Z`.
    pub state: char,
}

/// All that there is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct World {
    /// The GPUs with their compute modes.
    pub inventory: Inventory,
    /// The files: everything that root keeps, and other exporters' files in `/run/map` and `/run/gpustat`.
    pub files: Tree,
    /// The process that goes on with a start alone.
    pub starter: Option<i32>,
    /// It was ended by another worker.
    pub starter_ended: bool,
    /// The cgroups.
    pub cgroups: BTreeSet<PathBuf>,
    /// The processes, by pid.
    pub processes: BTreeMap<i32, Living>,
    /// Contexts of others: GPU and pid.
    pub foreign: Vec<(GpuUuid, i32)>,
    /// What the next process of a job survives.
    pub stubborn: Option<Rung>,
    /// The threads of those that survive, in one look after the other; the last look stays.
    pub looks: Vec<Vec<Thread>>,
    /// The users' processes that wait in the kernel.
    pub waiting: Vec<Waiting>,
    /// NVML gives no answer any more.
    pub silent: bool,
    /// Seconds since the boot.
    pub now: u64,
    /// So many looks still find a process of the user's besides the job's own.
    pub user_is_seen: u32,
    /// No process starts on this node: `mpsd` ends at once.
    pub stillborn: bool,
    /// This node has cgroups.
    pub has_cgroups: bool,
    /// No process of its own is to be had for the rest of a start.
    pub undivided: bool,
    /// A drain of this node that its scheduler has not got.
    pub undelivered: Option<String>,
    /// The scheduler takes no drain now.
    pub deaf: bool,
    /// The drains ordered.
    pub drains: Vec<String>,
    /// The jobs put back into the queue.
    pub requeued: Vec<JobId>,
    /// No record can be written.
    pub no_room: bool,
    /// The jobs whose daemons root proved.
    pub proved: BTreeSet<JobId>,
    /// The jobs through whose daemons `mps-probe` ran.
    pub probed: BTreeSet<JobId>,
    /// How often a prologue held its exit back.
    pub waits: u32,
    /// What was said to the caller.
    pub complaints: Vec<String>,
    /// The reports of jobs that have ended: they stay on purpose.
    pub reports: Vec<JobReport>,
    /// No exporter's file can be written.
    pub untold: bool,
    /// The kinds of the starts that failed.
    pub failed: Vec<FailureKind>,
    /// Lines logged.
    pub log: Vec<String>,
    /// The locks that are held now.
    pub held: BTreeSet<PathBuf>,
    next_pid: i32,
}

impl World {
    /// A node with these GPUs, nothing on it.
    pub fn new(inventory: Inventory) -> Self {
        let (paths, exporters) = (paths(), ["/run/map", "/run/gpustat"].map(PathBuf::from));
        let directories = [paths.run().to_owned(), paths.jobs(), paths.gpus()];
        let all = directories.into_iter().chain(exporters);
        Self {
            inventory,
            files: all.map(|path| (path, None)).collect(),
            has_cgroups: true,
            next_pid: 1000,
            ..Self::default()
        }
    }

    /// The text of a file, if it is there.
    pub fn text(&self, path: &Path) -> Option<String> {
        let bytes = self.files.get(path)?.clone();
        bytes.map(|bytes| String::from_utf8(bytes).expect("text"))
    }

    /// Writes a file.
    pub fn put(&mut self, path: PathBuf, text: impl Into<Vec<u8>>) {
        self.files.insert(path, Some(text.into()));
    }

    /// Whether the job has a directory.
    pub fn has_job(&self, job: &JobId) -> bool {
        self.files.contains_key(paths().job(job).directory())
    }

    /// The job's journal.
    pub fn journal(&self, job: &JobId) -> Option<Journal> {
        let text = self.text(&paths().job(job).journal())?;
        Some(Journal::parse(&text).expect("a journal"))
    }

    /// What the job's record says of its MPS.
    pub fn state(&self, job: &JobId) -> Option<RecordState> {
        let text = self.text(&paths().job(job).record())?;
        Some(Record::parse(&text).expect("a record").state)
    }

    /// How many directories of the user's the job has.
    pub fn users_directories(&self, job: &JobId) -> usize {
        let (paths, all) = (paths().job(job), self.files.iter());
        let below = |path: &Path| path.parent() == Some(paths.directory());
        all.filter(|(path, entry)| below(path) && entry.is_none()).count()
    }

    /// The accounts of the GPUs.
    pub fn accounts(&self) -> Tree {
        let mut files = self.files.clone();
        files.retain(|path, _| path.starts_with(paths().gpus()));
        files
    }

    /// Enters `account` for `gpu`, as root does.
    pub fn enter(&mut self, gpu: &GpuUuid, account: &Account) {
        let text = serde_json::to_vec_pretty(account).expect("an account");
        self.put(paths().gpu(gpu), text);
        self.put(paths().gpus().join(format!(".{gpu}.lock")), "");
    }

    /// A new process.
    pub fn spawn(&mut self, living: Living) -> i32 {
        self.next_pid += 1;
        self.processes.insert(self.next_pid, living);
        self.next_pid
    }

    /// Sets a compute mode behind everybody's back.
    pub fn set_mode(&mut self, gpu: &GpuUuid, mode: ComputeMode) {
        let mut gpus = self.inventory.gpus.iter_mut();
        gpus.find(|known| known.uuid == *gpu).expect("a GPU").mode = mode;
    }

    /// Whether the job has such a process.
    pub fn has_process(&self, job: &JobId, is: impl Fn(&Living) -> bool) -> bool {
        self.processes.values().any(|p| p.job == *job && is(p))
    }

    /// What a living `mpsd` does by itself: it starts what its job still lacks. Without its directories it ends.
    pub fn settle(&mut self) {
        let supervisors: Vec<(i32, Living)> = self
            .processes
            .iter()
            .filter(|(_, p)| p.role == Role::Supervisor && p.state == 'S')
            .map(|(pid, p)| (*pid, p.clone()))
            .collect();
        for (pid, mpsd) in supervisors {
            if self.users_directories(&mpsd.job) == 0 {
                self.processes.remove(&pid);
            } else if !self.has_process(&mpsd.job, |p| p.role == Role::Control) && !self.stillborn {
                for role in [Role::Control, Role::Server] {
                    let has_context = role == Role::Server;
                    let gpus = mpsd.gpus.iter().filter(|_| has_context).cloned().collect();
                    self.spawn(Living {
                        role,
                        gpus,
                        ..mpsd.clone()
                    });
                }
            }
        }
    }

    /// A start of `job` begins or has failed: what was proved of an earlier one does not count.
    pub fn forget_proof(&mut self, job: &JobId) {
        self.proved.remove(job);
        self.probed.remove(job);
    }

    /// What a reviewer compares: what a job may change on the node.
    pub fn picture(&self) -> Self {
        let mut files = self.files.clone();
        files.retain(|path, _| path.parent() != Some(paths().run()));
        Self {
            inventory: self.inventory.clone(),
            files,
            cgroups: self.cgroups.clone(),
            processes: self.processes.clone(),
            foreign: self.foreign.clone(),
            held: self.held.clone(),
            ..Self::default()
        }
    }
}

/// What cannot be mistaken for another process: here pids are never used again.
pub fn reference(pid: i32) -> ProcessRef {
    ProcessRef {
        pid,
        start_time: pid.unsigned_abs().into(),
    }
}
