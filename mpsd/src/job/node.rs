//! The primitives that a job's life needs of a machine. `mpsd/src/node` does them on this machine,
//! and `tests/src/sim` in memory. All decisions are shipped code: [`super::store`] for files.

use super::audit::Entry;
use super::drain_target::DrainTarget;
use super::journal::{Journal, ProcessRef, Programs};
use super::report::JobOutcome;
use super::spec::Spec;
use batch::control::Controller;
use batch::drain::Place;
use batch::{Location, UserRef};
use mpsd_core::config::Settings;
use mpsd_core::failure::Fault;
use mpsd_core::file::Durability;
use mpsd_core::gpu::GpuProcess;
use mpsd_core::{ComputeMode, Failure, GpuUuid, Inventory, JobId, Paths};
use mpsd_sys::deadline::Deadline;
pub use mpsd_sys::files::{Bounds, FileError, TmpfsSize};
pub use mpsd_sys::process::Thread;
use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LOCK_TIME: Duration = Duration::from_secs(5);

pub type LockGuard = Box<dyn Any>;

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, derive_more::Display, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    #[display("mpsd")]
    Supervisor,
    #[display("mps-control")]
    Control,
    #[display("mps-server")]
    Server,
    /// A process in the job's own cgroup that is none of the three. The user put it there.
    #[display("process")]
    Other,
}

/// The teardown ladder. Each rung is tried only while a process of the job's MPS is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub enum Rung {
    /// `terminate_client` for each client, `quit`, `quit -t`, by NVIDIA's program, as the job's
    /// user.
    Polite,
    Terminate,
    /// SIGKILL. It leaves zombies, and what hangs in the kernel.
    Kill,
}

impl Rung {
    pub fn time(self, total: Duration) -> Duration {
        match self {
            // Each command may hang forever behind a stopped server, and the control daemon ends in
            // less than 100 ms (docs/facts/mps-control.md#crashes-and-hangs).
            Self::Polite => total / 2,
            Self::Terminate => total / 5,
            Self::Kill => total * 3 / 10,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{role} {process} state {state}")]
pub struct Member {
    pub process: ProcessRef,
    pub role: Role,
    /// Its state letter (`/proc/PID/stat`): R, S, D, Z, T.
    pub state: char,
}

impl Member {
    /// The process has ended, and its parent has not waited for it. It holds no memory and no GPU.
    pub fn is_defunct(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// The threads of a user that ignore signals while they wait, or wait in the driver.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Waiting {
    pub uid: u32,
    /// Equal threads stand here once. A stack ends with the driver's innermost frame; without one
    /// it is empty.
    pub threads: Vec<Thread>,
}

/// The node's GPUs, through NVML. An error is a fault if NVML is broken or a GPU is lost; else
/// undetermined.
pub trait Gpus {
    fn use_nvml(&mut self, library: &str);
    /// Loads NVML, and looks at `gpus`, while other things are done. The first question reports a
    /// failure.
    fn prepare_nvml(&mut self, _gpus: &[GpuUuid]) {}
    /// All GPUs. If some of them are as `known`, they alone are asked for.
    fn inventory(&mut self, known: Option<(Inventory, Vec<GpuUuid>)>)
    -> Result<Inventory, Failure>;
    fn compute_mode(&mut self, gpu: &GpuUuid) -> Result<ComputeMode, Failure>;
    /// Sets the compute mode and reads it back.
    fn set_compute_mode(&mut self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), Failure>;
    /// The living processes with a context on `gpu`.
    fn gpu_processes(&mut self, gpu: &GpuUuid) -> Result<Vec<GpuProcess>, Failure>;
    /// The process that asked NVML and got no answer in its time, since the last call of this.
    fn silent_nvml(&mut self) -> Option<ProcessRef>;
}

/// Where root keeps its files on a node, and how long it may take.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    pub paths: Paths,
    pub lock_time: Duration,
    pub teardown: Duration,
    /// When the removal of users' files stops. The next end or `mpsctl reconcile` goes on.
    pub ends: Deadline,
}

impl NodeSettings {
    /// For a program that has `limit` for all, and `teardown` of it for the ladder.
    pub fn new(settings: &Settings, limit: Duration, teardown: Duration) -> Self {
        Self {
            paths: settings.paths.clone(),
            lock_time: LOCK_TIME.min(limit / 4),
            teardown,
            ends: Deadline::after(limit),
        }
    }
}

/// Files, by absolute paths. No symbolic link is followed. An error is the kernel's, or says what
/// the entry is instead.
pub trait Files {
    fn settings(&self) -> &NodeSettings;
    /// Takes the exclusive lock of the file at `path`, which it makes. A bound is the error if
    /// `deadline` passes.
    fn lock(&mut self, path: &Path, deadline: Deadline) -> Result<LockGuard, FileError>;
    fn is_locked(&self, path: &Path) -> bool;
    fn is_there(&self, path: &Path) -> bool;
    /// The file at `path`, if it is there; at most `max` bytes.
    fn read(&mut self, path: &Path, max: usize) -> Result<Option<Vec<u8>>, FileError>;
    /// Replaces the file at `path` in one step.
    fn write(
        &mut self,
        path: &Path,
        bytes: &[u8],
        mode: u32,
        durability: Durability,
    ) -> Result<(), FileError>;
    /// Removes the file at `path`, if it is there.
    fn remove_file(&mut self, path: &Path) -> Result<(), FileError>;
    /// Makes a directory of root's with this mode. One that is there must be root's; it gets the
    /// mode.
    fn create_dir(&mut self, path: &Path, mode: u32) -> Result<(), FileError>;
    /// The names in a directory, sorted; none if it is not there.
    fn names(&self, path: &Path) -> Result<Vec<String>, FileError>;
    /// Removes a directory of root's with all that is in it.
    fn remove_tree(&mut self, path: &Path, bounds: Bounds) -> Result<(), FileError>;
    /// Makes the directory `path` for the user of `journal`, 0700, with a bound of room if its
    /// tasks see that.
    fn make_users_directory(
        &mut self,
        journal: &Journal,
        path: &Path,
        room: TmpfsSize,
    ) -> Result<(), FileError>;
    /// Removes directories that a user fills and whose locks a user can keep.
    fn remove_users_directories(&mut self, paths: &[PathBuf], bounds: Bounds)
    -> Result<(), String>;
    /// Whether a user keeps the lock of one of these directories: a removal there could hang beyond
    /// SIGKILL.
    fn are_directories_kept(&mut self, paths: &[PathBuf], limit: Duration) -> bool;
    /// What the file system of `path` lacks for a start, in words.
    fn lacking(&self, path: &Path) -> Option<String>;
    /// Keeps the job's report, or counts its failed start, if that can be done at once. A failure
    /// is only logged.
    fn keep(&mut self, outcome: JobOutcome<'_>);
}

/// The job's `mpsd`, its cgroup, and NVIDIA's programs. An error is a fault only if no user can be
/// its cause.
pub trait Daemons {
    /// Checks that NVIDIA's control program is root's and can be run.
    fn check_control(&mut self, control: &Path) -> Result<(), Failure>;
    fn programs(&mut self, control: &Path) -> Programs;
    /// Makes the job's cgroup; `None` if the node has none that we can use.
    fn make_cgroup(&mut self, journal: &Journal) -> Result<Option<PathBuf>, Failure>;
    /// Removes the job's cgroup, and ours above it if that is empty then.
    fn remove_cgroup(&mut self, journal: &Journal) -> Result<(), Failure>;
    /// Starts `mpsd` as the job's user. It starts the control daemons, but no server before
    /// [`Daemons::await_ready`].
    fn start_supervisor(&mut self, journal: &Journal, spec: &Spec) -> Result<ProcessRef, Failure>;
    /// Lets it start the servers, waits for its report, and proves what root can prove of it.
    /// Returns the control daemons and servers, as root saw them.
    fn await_ready(&mut self, journal: &Journal, spec: &Spec) -> Result<Vec<ProcessRef>, Failure>;
    /// Does `rest` in a process of its own, which outlives this program. From then on only that
    /// process uses the node. False: the process could not be made, and nothing was done.
    fn detach(&mut self, rest: impl FnOnce(&mut Self)) -> bool
    where
        Self: Sized;
    fn own_process(&self) -> Option<ProcessRef>;
    /// Ends root's process that starts the MPS of a job or watches its start, unless it is this
    /// one.
    fn end_starter(&mut self, starter: ProcessRef);
}

pub trait Members {
    /// The processes in the job's own cgroup. Reads nothing that a user can block.
    fn grouped(&mut self, journal: &Journal) -> Vec<i32>;
    /// A process as it is now: its identity and its state letter. Reads nothing that a user can
    /// block.
    fn process(&mut self, pid: i32) -> Option<(ProcessRef, char)>;
    /// Those of `processes` that run the files of the job's MPS, with their roles. One
    /// unreadable process does not stop the look at the others.
    fn roles(&mut self, journal: &Journal, processes: &[ProcessRef]) -> Vec<(ProcessRef, Role)>;
    fn member(&mut self, pid: i32, role: Role) -> Option<Member> {
        self.process(pid).map(|(process, state)| Member {
            process,
            role,
            state,
        })
    }
    /// The processes that root knows: those of the journal, and all in the job's own cgroup.
    fn known_members(&mut self, journal: &Journal) -> Vec<Member> {
        let supervisor = journal.supervisor.iter().map(|id| (*id, Role::Supervisor));
        let roles = [Role::Control, Role::Server].into_iter().cycle();
        let named = supervisor.chain(journal.proved.iter().copied().zip(roles));
        let mut found = BTreeMap::new();
        for (id, role) in named.collect::<Vec<_>>() {
            let member = self.member(id.pid, role);
            if let Some(member) = member.filter(|member| member.process == id) {
                found.entry(id.pid).or_insert(member);
            }
        }
        for pid in self.grouped(journal) {
            if let Some(member) = self.member(pid, Role::Other) {
                found.entry(pid).or_insert(member);
            }
        }
        found.into_values().collect()
    }
    /// Processes of this job's MPS that are neither in the journal nor in a cgroup that they cannot
    /// leave. Looks at the user's processes, each in a child with a deadline.
    fn strangers(&mut self, journal: &Journal) -> Vec<Member>;
    /// All of these, each with its role.
    fn members(&mut self, journal: &Journal) -> Vec<Member> {
        let mut all = self.known_members(journal);
        let unknown = all.iter().filter(|m| m.role == Role::Other);
        let unknown: Vec<ProcessRef> = unknown.map(|m| m.process).collect();
        let known: BTreeMap<ProcessRef, Role> = self.roles(journal, &unknown).into_iter().collect();
        for member in &mut all {
            member.role = known.get(&member.process).copied().unwrap_or(member.role);
        }
        all.extend(self.strangers(journal));
        all
    }
    /// Sends strangers SIGTERM or SIGKILL, as the rung says, and waits for their end.
    fn end_strangers(&mut self, members: &[Member], rung: Rung, limit: Duration);
    /// Does what the rung says to [`Members::known_members`], and returns those that the kernel
    /// still has.
    fn climb(&mut self, journal: &Journal, rung: Rung, limit: Duration) -> Vec<Member>;
    /// Ends the clients that the job of `sharer` has at the daemons of `shared`, as its user. If
    /// one stays, the scheduler kills it.
    fn end_clients(&mut self, shared: &Journal, sharer: &Journal);
    /// The living threads of a process; `None` if it is gone, or cannot be read in time.
    fn threads(&mut self, process: ProcessRef) -> Option<Vec<Thread>>;
    /// The waiting threads of all users; `None` if one of them cannot be read in time.
    fn waiting(&mut self) -> Option<Vec<Waiting>>;
    /// A process in words that any user may read.
    fn describe(&mut self, pid: i32) -> String {
        format!("process {pid}")
    }
    /// Whether the job's user has a process here besides the job's MPS.
    fn user_is_here(&mut self, journal: &Journal) -> bool;
    /// Whether the scheduler's cgroup proves that `pid` is of this job; `None` if its user is not
    /// the job's.
    fn is_of_job(&mut self, journal: &Journal, pid: i32) -> Option<bool>;
}

pub trait Scheduling {
    fn controller(&mut self, place: &Place<'_>) -> Box<dyn Controller>;
    /// The reason of a drain of `node` that its scheduler has not got yet.
    fn undelivered(&mut self, node: &str) -> Option<String>;
    /// Drains the node for `fault` and remembers it, unless the site drains nothing. Returns a line
    /// for the log, and whether the scheduler has it.
    fn drain(
        &mut self,
        place: &Place<'_>,
        target: &DrainTarget,
        fault: &Fault,
    ) -> Option<(String, bool)>;
    /// Shows the administrator a failure that does not drain, as the node's note. Returns a line
    /// for the log.
    fn remark(&mut self, place: &Place<'_>, failure: &Failure) -> Option<String>;
    /// Removes these notes: a start worked. Returns lines for the log.
    fn withdraw_remarks(&mut self, location: &Location) -> Vec<String>;
    /// Writes a line into the output file of a batch job that went back into its queue, as its
    /// user.
    fn note(
        &mut self,
        place: &Place<'_>,
        job: &JobId,
        user: &UserRef,
        line: &str,
    ) -> Result<(), String>;
}

/// How grave a line is; the numbers are syslog's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Error = 3,
    /// Something did not work, and nothing is proved.
    Warning = 4,
    Info = 6,
}

pub trait Console {
    fn log(&mut self, severity: Severity, line: &str);
    fn audit(&mut self, entry: &Entry) {
        self.log(Severity::Info, &entry.line);
    }
    fn complain(&mut self, line: &str);
    fn since_boot(&self) -> u64;
    fn wait_until(&mut self, end: Deadline);
}

pub trait Node: Gpus + Files + Daemons + Members + Scheduling + Console {}

impl<N: Gpus + Files + Daemons + Members + Scheduling + Console> Node for N {}
