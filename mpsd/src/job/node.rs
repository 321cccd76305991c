//! The primitives that a job's life needs of a machine. `mpsd/src/node` does them on this machine,
//! and `tests/src/sim` in memory. All decisions are shipped code.

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
    /// None of the three, in the MPS' cgroup: the user put it there.
    #[display("process")]
    Other,
}

/// Each rung is tried only while a process of the job's MPS is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub enum Rung {
    /// `terminate_client`, `quit`, `quit -t`, by NVIDIA's program, as the job's user.
    Polite,
    Terminate,
    /// It leaves zombies, and what hangs in the kernel.
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
    /// Of `/proc/PID/stat`: R, S, D, Z, T.
    pub state: char,
}

impl Member {
    /// It has ended, and its parent has not waited for it: it holds no memory and no GPU.
    pub fn is_defunct(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// The threads of a user that ignore signals while they wait, or wait in the driver.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Waiting {
    pub uid: u32,
    /// Equal threads once. A stack ends with the driver's innermost frame; without one it is empty.
    pub threads: Vec<Thread>,
}

/// Through NVML. An error is a fault if NVML is broken or a GPU is lost; else undetermined.
pub trait Gpus {
    fn use_nvml(&mut self, library: &str);
    /// Loads NVML while other things are done. The first question reports a failure.
    fn prepare_nvml(&mut self, _gpus: &[GpuUuid]) {}
    /// All GPUs. With `known`, NVML is asked about the GPUs named there alone, while these are as
    /// before.
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

#[derive(Debug, Clone)]
pub struct NodeSettings {
    pub paths: Paths,
    pub lock_time: Duration,
    pub teardown: Duration,
    /// When the program's time is over; the next end goes on.
    pub ends: Deadline,
}

impl NodeSettings {
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
    /// Locks the file, which it makes. A bound is the error if `deadline` passes.
    fn lock(&mut self, path: &Path, deadline: Deadline) -> Result<LockGuard, FileError>;
    fn is_locked(&self, path: &Path) -> bool;
    fn is_there(&self, path: &Path) -> bool;
    /// At most `max` bytes of the file; `None`: it is not there.
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
    /// Makes a directory of root's. One that is there must be root's; it gets the mode.
    fn create_dir(&mut self, path: &Path, mode: u32) -> Result<(), FileError>;
    /// Sorted; none if it is not there.
    fn names(&self, path: &Path) -> Result<Vec<String>, FileError>;
    fn remove_tree(&mut self, path: &Path, bounds: Bounds) -> Result<(), FileError>;
    /// The user's, 0700, with a bound of room if its tasks see that.
    fn make_users_directory(
        &mut self,
        journal: &Journal,
        path: &Path,
        room: TmpfsSize,
    ) -> Result<(), FileError>;
    /// Removes directories that a user fills, and whose locks a user can keep.
    fn remove_users_directories(&mut self, paths: &[PathBuf], bounds: Bounds)
    -> Result<(), String>;
    /// Whether a user keeps the lock of one: a removal there could hang beyond SIGKILL.
    fn are_directories_kept(&mut self, paths: &[PathBuf], limit: Duration) -> bool;
    /// What the file system of `path` lacks for a start, in words.
    fn lacking(&self, path: &Path) -> Option<String>;
    /// Keeps the report or counts the start if that can be done at once. A failure is only logged.
    fn keep(&mut self, outcome: JobOutcome<'_>);
}

/// An error is a fault only if no user can be its cause.
pub trait Daemons {
    /// NVIDIA's program must be root's, and runnable.
    fn check_control(&mut self, control: &Path) -> Result<(), Failure>;
    fn programs(&mut self, control: &Path) -> Programs;
    /// `None`: the node has none that we can use.
    fn make_cgroup(&mut self, journal: &Journal) -> Result<Option<PathBuf>, Failure>;
    /// Removes ours above it, too, if that is empty then.
    fn remove_cgroup(&mut self, journal: &Journal) -> Result<(), Failure>;
    /// `mpsd` starts daemons and servers on its own; [`Daemons::await_ready`] waits.
    fn start_supervisor(&mut self, journal: &Journal, spec: &Spec) -> Result<ProcessRef, Failure>;
    /// Proves what root can prove of `mpsd`'s report. Returns the control daemons and servers.
    fn await_ready(&mut self, journal: &Journal, spec: &Spec) -> Result<Vec<ProcessRef>, Failure>;
    /// Does `rest` in a process that outlives this program, and alone uses the node from then on.
    /// False: nothing was done.
    fn detach(&mut self, rest: impl FnOnce(&mut Self)) -> bool
    where
        Self: Sized;
    fn own_process(&self) -> Option<ProcessRef>;
    /// Ends root's process that starts a job's MPS or watches its start, unless it is this one.
    fn end_starter(&mut self, starter: ProcessRef);
}

pub trait Members {
    /// The processes in the job's own cgroup. Reads nothing that a user can block.
    fn grouped(&mut self, journal: &Journal) -> Vec<i32>;
    /// Its identity and its state letter now. Reads nothing that a user can block.
    fn process(&mut self, pid: i32) -> Option<(ProcessRef, char)>;
    /// Those of `processes` that run the files of the job's MPS, without unreadable ones.
    fn roles(&mut self, journal: &Journal, processes: &[ProcessRef]) -> Vec<(ProcessRef, Role)>;
    fn member(&mut self, pid: i32, role: Role) -> Option<Member> {
        self.process(pid).map(|(process, state)| Member {
            process,
            role,
            state,
        })
    }
    /// Those of the journal, and all in the job's own cgroup.
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
    /// Members that are neither in the journal nor in a cgroup that they cannot leave. A child with
    /// a deadline looks at the user's processes.
    fn strays(&mut self, journal: &Journal) -> Vec<Member>;
    fn members(&mut self, journal: &Journal) -> Vec<Member> {
        let mut all = self.known_members(journal);
        let unknown = all.iter().filter(|m| m.role == Role::Other);
        let unknown: Vec<ProcessRef> = unknown.map(|m| m.process).collect();
        let known: BTreeMap<ProcessRef, Role> = self.roles(journal, &unknown).into_iter().collect();
        for member in &mut all {
            member.role = known.get(&member.process).copied().unwrap_or(member.role);
        }
        all.extend(self.strays(journal));
        all
    }
    /// Sends SIGTERM or SIGKILL, as the rung says, and waits for the end.
    fn end_each(&mut self, members: &[Member], rung: Rung, limit: Duration);
    /// Does what the rung says to [`Members::known_members`], and returns those that are left.
    fn climb(&mut self, journal: &Journal, rung: Rung, limit: Duration) -> Vec<Member>;
    /// Ends them at the daemons of `shared`, as their user. If one stays, the scheduler kills it.
    fn end_clients(&mut self, shared: &Journal, sharer: &Journal);
    /// The living ones; `None` if the process is gone, or cannot be read in time.
    fn threads(&mut self, process: ProcessRef) -> Option<Vec<Thread>>;
    /// Of all users; `None` if one cannot be read in time.
    fn waiting(&mut self) -> Option<Vec<Waiting>>;
    /// In words that any user may read.
    fn describe(&mut self, pid: i32) -> String {
        format!("process {pid}")
    }
    /// Besides the job's MPS.
    fn user_is_here(&mut self, journal: &Journal) -> bool;
    /// By the scheduler's cgroup; `None` if its user is not the job's.
    fn is_of_job(&mut self, journal: &Journal, pid: i32) -> Option<bool>;
}

pub trait Scheduling {
    fn controller(&mut self, place: &Place<'_>) -> Box<dyn Controller>;
    /// The reason of a drain of `node` that its scheduler has not got yet.
    fn undelivered(&mut self, node: &str) -> Option<String>;
    /// Drains the node for `fault` and remembers it; `None`: the site drains nothing. Returns a
    /// line for the log, and whether the scheduler has it.
    fn drain(
        &mut self,
        place: &Place<'_>,
        target: &DrainTarget,
        fault: &Fault,
    ) -> Option<(String, bool)>;
    /// Shows the administrator a failure that does not drain. Returns a line for the log.
    fn remark(&mut self, place: &Place<'_>, failure: &Failure) -> Option<String>;
    /// Removes these notes: a start worked. Returns lines for the log.
    fn withdraw_remarks(&mut self, location: &Location) -> Vec<String>;
    /// Writes into the output file of a batch job that went back into its queue, as its user.
    fn note(
        &mut self,
        place: &Place<'_>,
        job: &JobId,
        user: &UserRef,
        line: &str,
    ) -> Result<(), String>;
}

/// The numbers are syslog's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Error = 3,
    /// Nothing is proved.
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
