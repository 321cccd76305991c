//! What a job's life needs of a node. The suite's programs do it to this node ([`crate::node`]), the tests to one in memory.

use super::account::Account;
use super::journal::{Journal, ProcessRef};
use super::ladder::Rung;
use super::spec::{ReadyDaemon, Spec};
use mpsd_core::gpu::GpuProcess;
use mpsd_core::record::Record;
use mpsd_core::{ComputeMode, Failure, GpuUuid, Inventory, JobId};
use std::any::Any;
use std::fmt;
use std::time::Duration;

/// A lock that is held until it is dropped.
pub type Held = Box<dyn Any>;

/// Which of our own three a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// `mpsd`, the supervisor.
    Supervisor,
    /// The vendor's control daemon.
    Control,
    /// The vendor's server.
    Server,
    /// It sits in the job's own cgroup without being one of the three; the user put it there.
    Other,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Supervisor => "mpsd",
            Self::Control => "mps-control",
            Self::Server => "mps-server",
            Self::Other => "process",
        })
    }
}

/// A process of the job's MPS that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Which process.
    pub process: ProcessRef,
    /// Which of the three.
    pub role: Role,
    /// Its state letter (`/proc/PID/stat`): R, S, D, Z, T.
    pub state: char,
}

impl Member {
    /// A process that has ended and that nobody has waited for. It holds no memory and no GPU.
    pub fn is_defunct(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} state {}", self.role, self.process.pid, self.state)
    }
}

/// Whose processes are asked for at the rungs of the ladder.
pub type Members = Vec<Member>;

/// Everything that root can do to, or ask of, a node. One method is one effect or one question; no order is built in.
pub trait Node {
    /// All GPUs with their compute modes.
    ///
    /// # Errors
    /// A fault when NVML cannot be used or does not answer in time.
    fn inventory(&mut self) -> Result<Inventory, Failure>;
    /// The compute mode of `gpu`.
    ///
    /// # Errors
    /// As [`Node::inventory`]; a fault when the GPU is lost.
    fn compute_mode(&mut self, gpu: &GpuUuid) -> Result<ComputeMode, Failure>;
    /// Sets the compute mode and reads it back.
    ///
    /// # Errors
    /// As [`Node::compute_mode`]; undetermined when the driver refuses.
    fn set_compute_mode(&mut self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), Failure>;
    /// The processes with a context on `gpu`, without those that are gone already.
    ///
    /// # Errors
    /// As [`Node::compute_mode`].
    fn gpu_processes(&mut self, gpu: &GpuUuid) -> Result<Vec<GpuProcess>, Failure>;
    /// The user id of a process, if it is there.
    fn uid_of(&mut self, pid: i32) -> Option<u32>;

    /// Locks the account of `gpu`, with a deadline.
    ///
    /// # Errors
    /// Undetermined when the lock is not to be had in time.
    fn lock_gpu(&mut self, gpu: &GpuUuid) -> Result<Held, Failure>;
    /// The account of `gpu`, under its lock.
    ///
    /// # Errors
    /// A fault when it cannot be read; a garbled one is a fault as well: nobody but root writes there.
    fn read_account(&mut self, gpu: &GpuUuid) -> Result<Option<Account>, Failure>;
    /// Writes or (`None`) removes the account of `gpu`, under its lock.
    ///
    /// # Errors
    /// A fault.
    fn write_account(&mut self, gpu: &GpuUuid, account: Option<&Account>) -> Result<(), Failure>;

    /// Makes the job's directory if need be and locks it: one prologue or epilogue of a job at a time.
    ///
    /// # Errors
    /// Undetermined when another one holds it past the deadline; a fault when root cannot make a directory.
    fn open_job(&mut self, job: &JobId) -> Result<Held, Failure>;
    /// Locks the job's directory if it is there.
    ///
    /// # Errors
    /// As [`Node::open_job`].
    fn find_job(&mut self, job: &JobId) -> Result<Option<Held>, Failure>;
    /// The job's journal.
    ///
    /// # Errors
    /// A fault when it is there and cannot be read or understood.
    fn read_journal(&mut self, job: &JobId) -> Result<Option<Journal>, Failure>;
    /// Writes the journal: whole, synced, renamed.
    ///
    /// # Errors
    /// A fault.
    fn write_journal(&mut self, journal: &Journal) -> Result<(), Failure>;
    /// Writes the record for the job's tasks.
    ///
    /// # Errors
    /// A fault.
    fn write_record(&mut self, record: &Record) -> Result<(), Failure>;
    /// Makes pipe and log directory of daemon `n`, the user's.
    ///
    /// # Errors
    /// A fault.
    fn make_directories(&mut self, journal: &Journal, n: usize) -> Result<(), Failure>;
    /// Removes them with all that the user put there.
    ///
    /// # Errors
    /// Undetermined when the user's processes keep filling them.
    fn remove_directories(&mut self, journal: &Journal, n: usize) -> Result<(), Failure>;
    /// Removes the job's directory with journal and record: the last act.
    ///
    /// # Errors
    /// A fault.
    fn remove_job(&mut self, job: &JobId) -> Result<(), Failure>;

    /// Makes the job's cgroup; `None` where the node has none that we can use.
    ///
    /// # Errors
    /// A fault.
    fn make_cgroup(&mut self, journal: &Journal) -> Result<Option<std::path::PathBuf>, Failure>;
    /// Removes the job's cgroup, and the one above it when it was the last.
    ///
    /// # Errors
    /// Undetermined when it is not empty.
    fn remove_cgroup(&mut self, journal: &Journal) -> Result<(), Failure>;

    /// Starts `mpsd` as the job's user.
    ///
    /// # Errors
    /// Undetermined or a fault, by what kept it from starting.
    fn start_daemon(&mut self, journal: &Journal, spec: &Spec) -> Result<ProcessRef, Failure>;
    /// Waits for its report and proves what root can prove of it.
    ///
    /// # Errors
    /// Undetermined: the user's own processes could be the cause.
    fn await_ready(&mut self, journal: &Journal, spec: &Spec) -> Result<Vec<ReadyDaemon>, Failure>;
    /// Our own three of this job that are there.
    fn members(&mut self, journal: &Journal) -> Members;
    /// Does what the rung says, within `limit`, and returns who is left. Whoever is left is not believed gone before
    /// the kernel says so.
    fn climb(&mut self, journal: &Journal, rung: Rung, limit: Duration) -> Members;
    /// What a user keeps a process from ending with that was sent SIGKILL: a file system that a process of theirs serves, or
    /// a tracer. `None`: nothing of the kind, the kernel alone keeps it.
    fn held_by_user(&mut self, member: &Member) -> Option<&'static str>;
    /// Whether root proves that `pid` belongs to this job (its scheduler's cgroup or the job's own processes).
    fn is_of_job(&mut self, journal: &Journal, pid: i32) -> bool;
    /// SIGKILL to a client of the job that [`Node::is_of_job`] proved.
    fn kill_client(&mut self, pid: i32);

    /// Enters the failed start of this job if no user can have been its cause; true when such starts of two or more users
    /// failed within the window.
    fn note_failed_start(&mut self, journal: &Journal) -> bool;
    /// Forgets failed starts: one worked.
    fn note_good_start(&mut self);
    /// One line to the node's log.
    fn log(&mut self, line: &str);
    /// Time for the whole teardown.
    fn teardown_time(&self) -> Duration;
}
