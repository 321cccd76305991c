//! This node, as root changes it.

use super::log::{self, Severity};
use super::worker::NvmlWorker;
use super::{Held, Member, Members, Node};
use super::{daemons as daemon, failed_starts, members as processes, store};
use crate::job::account::Account;
use crate::job::journal::{Journal, ProcessRef};
use crate::job::ladder::Rung;
use crate::job::spec::{ReadyDaemon, Spec};
use crate::plan::effects::Effect;
use crate::sys::cgroup::Cgroup;
use crate::sys::process::Process;
use mpsd_core::config::{Cgroup as Rule, Settings};
use mpsd_core::failure::{Evidence, Fault, Undetermined};
use mpsd_core::gpu::GpuProcess;
use mpsd_core::record::Record;
use mpsd_core::{ComputeMode, Failure, GpuUuid, Inventory, JobId, Paths};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time for a lock on a GPU or a job: a prologue or an epilogue may be at work still.
const LOCK_TIME: Duration = Duration::from_secs(5);
/// Time for one answer of NVML; the first needs 12 ms (facts: mps-control, "Times"), more with many GPUs.
const NVML_TIME: Duration = Duration::from_secs(5);

/// How the real node is reached.
#[derive(Debug, Clone)]
pub struct Reach {
    /// Name of the program, for log lines.
    pub program: &'static str,
    /// Our own directories.
    pub paths: Paths,
    /// The NVML library.
    pub nvml: String,
    /// Jobs get a cgroup of their own where the node has cgroups: `auto`, `none`, or a directory.
    pub cgroup: CgroupChoice,
    /// Time for one answer of NVML.
    pub nvml_time: Duration,
    /// Time for a lock.
    pub lock_time: Duration,
    /// Time for the whole ladder.
    pub teardown: Duration,
    /// How long a failed start counts.
    pub failed_starts_window: Duration,
}

/// Where a job's cgroup is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CgroupChoice {
    /// Under our systemd unit's, in the unified hierarchy, else the named one.
    Auto,
    /// Nowhere.
    None,
    /// In this directory.
    Under(PathBuf),
}

impl Reach {
    /// How `program` reaches the node under `settings` when it has `limit` for all, and `teardown` of it for the ladder.
    pub fn of(program: &'static str, settings: &Settings, limit: Duration, teardown: Duration) -> Self {
        Self {
            program,
            paths: settings.paths.clone(),
            nvml: settings.nvml.clone(),
            cgroup: match &settings.cgroup {
                Rule::Auto => CgroupChoice::Auto,
                Rule::None => CgroupChoice::None,
                Rule::Below(path) => CgroupChoice::Under(path.clone()),
            },
            nvml_time: NVML_TIME.min(limit / 3),
            lock_time: LOCK_TIME.min(limit / 4),
            teardown,
            failed_starts_window: settings.drain.failed_starts_window,
        }
    }
}

/// This node.
#[derive(Debug)]
pub struct RealNode {
    pub(super) program: &'static str,
    pub(super) paths: Paths,
    pub(super) mpsd: PathBuf,
    pub(super) nvml: String,
    pub(super) cgroup: CgroupChoice,
    pub(super) nvml_time: Duration,
    pub(super) lock_time: Duration,
    pub(super) remove_time: Duration,
    pub(super) teardown: Duration,
    pub(super) worker: Option<NvmlWorker>,
    pub(super) leaving: Option<NvmlWorker>,
    pub(super) started: Option<daemon::Started>,
    pub(super) failed_starts_window: Duration,
    /// The job's user had a process here while ours were started.
    pub(super) user_was_here: bool,
}

/// Time to remove what a user left in a job's directories.
const REMOVE_TIME: Duration = Duration::from_secs(5);

impl RealNode {
    /// The node as `reach` says; `mpsd` stands beside this program's own file.
    ///
    /// # Errors
    /// A fault when this program's own file cannot be told.
    pub fn new(reach: Reach) -> Result<Self, Failure> {
        Ok(Self {
            program: reach.program,
            paths: reach.paths,
            mpsd: beside("mpsd")?,
            nvml: reach.nvml,
            cgroup: reach.cgroup,
            nvml_time: reach.nvml_time,
            lock_time: reach.lock_time,
            remove_time: REMOVE_TIME,
            teardown: reach.teardown,
            worker: None,
            leaving: None,
            started: None,
            failed_starts_window: reach.failed_starts_window,
            user_was_here: false,
        })
    }

    /// The directories' names of all jobs that have one.
    ///
    /// # Errors
    /// A fault.
    pub fn job_directories(&self) -> Result<Vec<String>, Failure> {
        store::job_directories(self)
    }

    /// The jobs of which nothing but the lock is left, by their directories' names.
    ///
    /// # Errors
    /// A fault.
    pub fn job_locks(&self) -> Result<Vec<String>, Failure> {
        store::job_locks(self)
    }

    /// The GPUs that have an account, or a lock for one.
    ///
    /// # Errors
    /// A fault.
    pub fn gpus_with_files(&self) -> Result<Vec<GpuUuid>, Failure> {
        store::gpus_with_files(self)
    }

    /// From now on NVML is this library: the one that the job's journal names.
    pub fn use_nvml(&mut self, library: &str) {
        if self.nvml != library {
            library.clone_into(&mut self.nvml);
            self.worker = None;
        }
    }

    /// Our own directories.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// The process that asks NVML, started at the first question and ended with us.
    fn worker(&mut self) -> Result<&mut NvmlWorker, Failure> {
        if self.worker.is_none() {
            self.worker = Some(NvmlWorker::start(&self.mpsd, &self.nvml, self.nvml_time)?);
        }
        self.worker
            .as_mut()
            .ok_or_else(|| Undetermined::new("NVML worker", "it has gone").into())
    }

    /// Lets the worker end while other things are done; it is waited for when this node is dropped. It stays until the
    /// servers are ready: a GPU that nobody holds open is shut down by a driver without persistence mode.
    pub(super) fn dismiss_worker(&mut self) {
        if let Some(mut worker) = self.worker.take() {
            worker.dismiss();
            self.leaving = Some(worker);
        }
    }

    /// Asks NVML; after a fault the next question starts anew.
    fn ask<T>(&mut self, question: impl FnOnce(&mut NvmlWorker) -> Result<T, Failure>) -> Result<T, Failure> {
        let result = question(self.worker()?);
        if result.is_err() {
            self.worker = None;
        }
        result
    }

    pub(super) fn cgroup_of(&self, journal: &Journal) -> Option<Cgroup> {
        if let Some(path) = journal.cgroup.as_deref() {
            return Cgroup::open(path).ok().flatten();
        }
        // Made, and its maker killed before the path stood in the journal.
        let name = journal.job.directory_name();
        match &self.cgroup {
            _ if !journal.has_begun(&Effect::MakeCgroup) => None,
            CgroupChoice::None => None,
            CgroupChoice::Auto => Cgroup::find(&name),
            CgroupChoice::Under(base) => Cgroup::open(&base.join(name)).ok().flatten(),
        }
    }

    /// The user's supplementary groups, from the directory service; without it none but their own.
    pub(crate) fn groups_of(&self, journal: &Journal) -> Vec<u32> {
        let name = std::ffi::OsStr::new(&journal.user);
        users::get_user_groups(name, journal.gid)
            .map(|groups| groups.iter().map(users::Group::gid).collect())
            .unwrap_or_else(|| vec![journal.gid])
    }
}

/// The suite's program `name`, beside this one.
///
/// # Errors
/// A fault when this program's own file cannot be told.
pub fn beside(name: &str) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()
        .map_err(|e| Fault::new(Evidence::Storage, "/proc/self/exe", e.to_string()))?;
    let directory = own.parent().unwrap_or(Path::new("/"));
    Ok(directory.join(name))
}

impl Node for RealNode {
    fn inventory(&mut self) -> Result<Inventory, Failure> {
        self.ask(NvmlWorker::inventory)
    }

    fn compute_mode(&mut self, gpu: &GpuUuid) -> Result<ComputeMode, Failure> {
        self.ask(|worker| worker.compute_mode(gpu))
    }

    fn set_compute_mode(&mut self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), Failure> {
        self.ask(|worker| worker.set_compute_mode(gpu, mode))?;
        let now = self.compute_mode(gpu)?;
        if now == mode {
            return Ok(());
        }
        let why = format!("set to {mode}, and it is {now}");
        Err(Undetermined::new(format!("compute mode of {gpu}"), why).into())
    }

    fn gpu_processes(&mut self, gpu: &GpuUuid) -> Result<Vec<GpuProcess>, Failure> {
        let mut processes = self.ask(|worker| worker.processes(gpu))?;
        // NVML goes on listing processes that are gone, or that live in another namespace (facts: peers, (c) 19).
        processes.retain(|process| processes::uid_of(process.pid).is_some());
        Ok(processes)
    }

    fn uid_of(&mut self, pid: i32) -> Option<u32> {
        processes::uid_of(pid)
    }

    fn lock_gpu(&mut self, gpu: &GpuUuid) -> Result<Held, Failure> {
        store::lock_gpu(self, gpu)
    }

    fn read_account(&mut self, gpu: &GpuUuid) -> Result<Option<Account>, Failure> {
        store::read_account(self, gpu)
    }

    fn write_account(&mut self, gpu: &GpuUuid, account: Option<&Account>) -> Result<(), Failure> {
        store::write_account(self, gpu, account)
    }

    fn open_job(&mut self, job: &JobId) -> Result<Held, Failure> {
        store::open_job(self, job)
    }

    fn find_job(&mut self, job: &JobId) -> Result<Option<Held>, Failure> {
        store::find_job(self, job)
    }

    fn read_journal(&mut self, job: &JobId) -> Result<Option<Journal>, Failure> {
        store::read_journal(self, job)
    }

    fn write_journal(&mut self, journal: &Journal) -> Result<(), Failure> {
        store::write_journal(self, journal)
    }

    fn write_record(&mut self, record: &Record) -> Result<(), Failure> {
        store::write_record(self, record)
    }

    fn make_directories(&mut self, journal: &Journal, n: usize) -> Result<(), Failure> {
        store::make_directories(self, journal, n)
    }

    fn remove_directories(&mut self, journal: &Journal, n: usize) -> Result<(), Failure> {
        store::remove_directories(self, journal, n)
    }

    fn remove_job(&mut self, job: &JobId) -> Result<(), Failure> {
        store::remove_job(self, job)
    }

    fn make_cgroup(&mut self, journal: &Journal) -> Result<Option<PathBuf>, Failure> {
        let name = journal.job.directory_name();
        let made = match &self.cgroup {
            CgroupChoice::None => return Ok(None),
            CgroupChoice::Auto => Cgroup::create(&name),
            CgroupChoice::Under(base) => Cgroup::create_under(base, &name),
        };
        // Without one, processes are told by pid, start time and file; a line in the log is all that is lost.
        match made {
            Ok(cgroup) => Ok(cgroup.map(|c| c.path().to_path_buf())),
            Err(error) => {
                self.log(&format!("job {}: no cgroup: {error}", journal.job));
                Ok(None)
            }
        }
    }

    fn remove_cgroup(&mut self, journal: &Journal) -> Result<(), Failure> {
        let Some(cgroup) = self.cgroup_of(journal) else {
            return Ok(());
        };
        cgroup
            .remove()
            .map(|_| ())
            .map_err(|e| Undetermined::new("the job's cgroup stays", e.to_string()).into())
    }

    fn start_daemon(&mut self, journal: &Journal, spec: &Spec) -> Result<ProcessRef, Failure> {
        daemon::start(self, journal, spec)
    }

    fn await_ready(&mut self, journal: &Journal, spec: &Spec) -> Result<Vec<ReadyDaemon>, Failure> {
        // Costs nothing: the vendor's programs take longer to come up.
        self.user_was_here = processes::user_is_here(self, journal);
        daemon::await_ready(self, journal, spec)
    }

    fn members(&mut self, journal: &Journal) -> Members {
        processes::members(self, journal)
    }

    fn climb(&mut self, journal: &Journal, rung: Rung, limit: Duration) -> Members {
        processes::climb(self, journal, rung, limit)
    }

    fn held_by_user(&mut self, member: &Member) -> Option<&'static str> {
        processes::held_by_user(member)
    }

    fn is_of_job(&mut self, journal: &Journal, pid: i32) -> bool {
        processes::is_in_jobs_cgroup(journal, pid)
    }

    fn kill_client(&mut self, pid: i32) {
        if let Ok(Some(process)) = Process::find(pid) {
            let _ = process.signal(nix::sys::signal::Signal::SIGKILL);
        }
    }

    fn note_failed_start(&mut self, journal: &Journal) -> bool {
        if self.user_was_here || failed_starts::may_be_a_users(self, journal) {
            return false;
        }
        failed_starts::note(&self.paths, journal.uid, self.failed_starts_window)
    }

    fn note_good_start(&mut self) {
        failed_starts::forget(&self.paths);
    }

    fn log(&mut self, line: &str) {
        log::line(self.program, Severity::Info, line);
    }

    fn teardown_time(&self) -> Duration {
        self.teardown
    }
}
