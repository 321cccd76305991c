//! What a job's life needs of a node. The suite's programs do it to this node ([`crate::node`]), the tests to one in memory.
//! One method is one effect or one question; no order is built in.

use super::account::Account;
use super::audit::Entry;
use super::journal::{Journal, ProcessRef, Programs};
use super::ladder::Rung;
use super::report::JobReport;
use super::spec::Spec;
use super::suspicion::Suspicion;
use crate::plan::effects::Exporter;
use crate::scheduler::drain::Place;
use crate::scheduler::{Requeued, Site, UserRef};
use crate::sys::deadline::Deadline;
pub use crate::sys::process::Thread;
use mpsd_core::failure::{FailureKind, Fault};
use mpsd_core::gpu::GpuProcess;
use mpsd_core::killed::KilledTask;
use mpsd_core::observations::Observations;
use mpsd_core::record::{Daemon, Record};
use mpsd_core::{ComputeMode, Failure, GpuUuid, Inventory, JobId};
use std::any::Any;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A lock that is held until it is dropped.
pub type Held = Box<dyn Any>;

/// What a start came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proved {
    /// The control daemons and servers, as root saw them.
    pub processes: Vec<ProcessRef>,
    /// The ids of each daemon's static partitions: the user's own word, which a wrong one of fails in his own tasks.
    pub partitions: Vec<Vec<String>>,
}

/// Which of our own three a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// `mpsd`, the supervisor.
    #[display("mpsd")]
    Supervisor,
    /// The vendor's control daemon.
    #[display("mps-control")]
    Control,
    /// The vendor's server.
    #[display("mps-server")]
    Server,
    /// It sits in the job's own cgroup without being one of the three; the user put it there.
    #[display("process")]
    Other,
}

/// A process of the job's MPS that is there.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{role} {process} state {state}")]
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

/// What of a user's processes waits in the kernel without regard to signals, or in a call of the driver's.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Waiting {
    /// The effective user of these processes.
    pub uid: u32,
    /// Their threads that wait so, alike ones once; each stack ends with the driver's innermost frame, and is empty without one.
    pub threads: Vec<Thread>,
}

/// The node's GPUs, through NVML.
pub trait Gpus {
    /// From now on NVML is this library: the one that the job's journal names.
    fn use_nvml(&mut self, library: &str);
    /// Questions about GPUs are to come: NVML needs tens of milliseconds for the first, which can pass while other things are
    /// done, and so it does for its first look at each of `gpus`. What fails here is told by the first question.
    fn prepare_nvml(&mut self, _gpus: &[GpuUuid]) {}
    /// No more of them: what ends NVML goes on while other things are done.
    fn dismiss_nvml(&mut self) {}
    /// All GPUs with their compute modes.
    ///
    /// # Errors
    /// A fault when NVML cannot be used or does not answer in time.
    fn inventory(&mut self) -> Result<Inventory, Failure>;
    /// The compute mode of `gpu`.
    ///
    /// # Errors
    /// As [`Gpus::inventory`]; a fault when the GPU is lost.
    fn compute_mode(&mut self, gpu: &GpuUuid) -> Result<ComputeMode, Failure>;
    /// Sets the compute mode and reads it back.
    ///
    /// # Errors
    /// As [`Gpus::compute_mode`]; undetermined when the driver refuses.
    fn set_compute_mode(&mut self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), Failure>;
    /// The processes with a context on `gpu`, without those that are gone already.
    ///
    /// # Errors
    /// As [`Gpus::compute_mode`].
    fn gpu_processes(&mut self, gpu: &GpuUuid) -> Result<Vec<GpuProcess>, Failure>;
    /// The process of ours that asked NVML and got no answer in its time, since this was asked last.
    fn silent_nvml(&mut self) -> Option<ProcessRef>;
}

/// What root remembers on the node: accounts of the GPUs, directories, journals and records of the jobs.
pub trait Store {
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
    /// The GPUs that have an account, or a lock for one.
    ///
    /// # Errors
    /// A fault.
    fn gpus_with_files(&mut self) -> Result<Vec<GpuUuid>, Failure>;

    /// Makes the job's directory if need be and locks it: one prologue or epilogue of a job at a time.
    ///
    /// # Errors
    /// Undetermined when another one holds it past the deadline; a fault when root cannot make a directory.
    fn open_job(&mut self, job: &JobId) -> Result<Held, Failure>;
    /// Locks the job's directory if it is there.
    ///
    /// # Errors
    /// As [`Store::open_job`].
    fn find_job(&mut self, job: &JobId) -> Result<Option<Held>, Failure>;
    /// Whether somebody holds the job's lock: a prologue or an epilogue of it is at work.
    fn is_held(&self, job: &JobId) -> bool;
    /// Tells the start under way that its job has ended: leaves a mark that lasts as long as the job's directory.
    ///
    /// # Errors
    /// A fault when root cannot write it.
    fn cancel(&mut self, job: &JobId) -> Result<(), Failure>;
    /// Whether the job has that mark.
    fn is_cancelled(&self, job: &JobId) -> bool;
    /// Whether the job has a directory.
    fn has_directory(&self, job: &JobId) -> bool;
    /// Whether the job has a lock file: somebody was killed between removing the directory and this.
    fn has_lock(&self, job: &JobId) -> bool;
    /// The directories' names of all jobs that have one.
    ///
    /// # Errors
    /// A fault.
    fn job_directories(&self) -> Result<Vec<String>, Failure>;
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
    /// Whether the record says that the job's MPS is ready.
    fn is_ready(&self, job: &JobId) -> bool;
    /// Makes pipe and log directory of daemon `n`, the user's, each with a bound of room where its tasks see that.
    ///
    /// # Errors
    /// A fault.
    fn make_directories(&mut self, journal: &Journal, n: usize) -> Result<(), Failure>;
    /// Whether somebody keeps the lock of one of the user's directories of the job: whoever removes something there waits for as
    /// long, whatever signal comes.
    fn are_locked(&mut self, journal: &Journal) -> bool;
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

    /// What the job's `mpsd` says that it saw: its user's word. Told once; what `mpsd` writes afterwards goes nowhere.
    fn take_observations(&mut self, job: &JobId) -> Option<Observations>;
    /// The tasks of the job that a signal ended, as root noted them.
    fn killed_tasks(&self, job: &JobId) -> Vec<KilledTask>;
    /// Keeps the job's report, as far as that can be done at once: nothing waits for it, and nothing fails with it.
    fn keep_report(&mut self, report: &JobReport);

    /// Enters the job, for each of its GPUs, into the files of `exporter` in `directory`; others' lines stay.
    ///
    /// # Errors
    /// One line.
    fn enter_job(&mut self, journal: &Journal, exporter: Exporter, directory: &Path) -> Result<(), String>;
    /// Takes the job out of them. A line for the log, where what is there cannot be ours.
    ///
    /// # Errors
    /// Undetermined.
    fn strike_job(
        &mut self,
        journal: &Journal,
        exporter: Exporter,
        directory: &Path,
    ) -> Result<Option<String>, Failure>;
    /// Counts a start that failed, as far as that can be done at once.
    fn count_failure(&mut self, kind: FailureKind);

    /// What the file system of the users' directories has too little of for a start, in words.
    fn lacking(&self) -> Option<String>;
    /// Remembers that a start of `job` of `uid` failed; true when starts of two or more users failed within the window.
    fn note_failed_start(&mut self, uid: u32, job: &JobId) -> bool;
    /// Forgets failed starts: one worked.
    fn forget_failed_starts(&mut self);

    /// What waits for a second look.
    fn suspicions(&mut self) -> Vec<Suspicion>;
    /// Remembers `suspicion`, unless its object is suspected already, and has the node looked at again.
    fn suspect(&mut self, suspicion: &Suspicion);
    /// Forgets `suspicion`.
    fn acquit(&mut self, suspicion: &Suspicion);
}

/// The job's `mpsd`, its cgroup, and the vendor's programs.
pub trait Daemons {
    /// Checks that the vendor's control program is root's and can be run.
    ///
    /// # Errors
    /// A fault; undetermined where descriptors or memory ran out.
    fn check_control(&mut self, control: &Path) -> Result<(), Failure>;
    /// The files that our own three run, as they are now.
    fn programs(&mut self, control: &Path) -> Programs;
    /// Makes the job's cgroup; `None` where the node has none that we can use.
    ///
    /// # Errors
    /// A fault.
    fn make_cgroup(&mut self, journal: &Journal) -> Result<Option<PathBuf>, Failure>;
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
    /// A refusal, in the words of the job's own `mpsd`; undetermined: the user's own processes could be the cause.
    fn await_ready(&mut self, journal: &Journal, spec: &Spec) -> Result<Proved, Failure>;
    /// Runs `mps-probe` as the job's user through `daemon`; it must find itself under MPS.
    ///
    /// # Errors
    /// Undetermined: what the probe said.
    fn probe(&mut self, journal: &Journal, daemon: &Daemon, deadline: Deadline) -> Result<(), Failure>;
    /// Does `rest` in a process of its own, which outlives this program and is told which one it is. False: there is none to
    /// be had, and nothing was done. The node is the other process's from then on.
    fn detach(&mut self, rest: impl FnOnce(&mut Self, Option<ProcessRef>)) -> bool
    where
        Self: Sized;
    /// This process; `None`: it cannot be told.
    fn own_process(&self) -> Option<ProcessRef>;
    /// Ends the process that starts the MPS of a job or watches its start, unless it is this one. It is root's own.
    fn end_starter(&mut self, starter: ProcessRef);
}

/// The processes of a job's MPS, and of its user.
pub trait Members {
    /// The processes of this job that root knows without looking at them: those of the journal, and all in the job's own
    /// cgroup. Nothing is read that a user can keep from being read.
    fn own(&mut self, journal: &Journal) -> Vec<Member>;
    /// Our own three of this job that are neither in the journal nor in a cgroup that they cannot leave: the user's processes
    /// are looked at, each by a child with a deadline.
    fn strangers(&mut self, journal: &Journal) -> Vec<Member>;
    /// All of these, each with its role.
    fn members(&mut self, journal: &Journal) -> Vec<Member>;
    /// SIGTERM or SIGKILL, as the rung says, to strangers; waits for their end, within `limit`.
    fn end_strangers(&mut self, members: &[Member], rung: Rung, limit: Duration);
    /// Does what the rung says to [`Members::own`], within `limit`, and returns who is left. Whoever is left is not believed
    /// gone before the kernel says so.
    fn climb(&mut self, journal: &Journal, rung: Rung, limit: Duration) -> Vec<Member>;
    /// The threads of a process that have not ended; `None`: it is gone, or that cannot be read in time.
    fn threads(&mut self, process: ProcessRef) -> Option<Vec<Thread>>;
    /// All processes of users that wait without regard to signals; `None`: one of them cannot be read in time.
    fn waiting(&mut self) -> Option<Vec<Waiting>>;
    /// Whether the job's user has a process here besides the job's own three and what these started.
    fn user_is_here(&mut self, journal: &Journal) -> bool;
    /// The user id of a process, if it is there.
    fn uid_of(&mut self, pid: i32) -> Option<u32>;
    /// Whether root proves that `pid` belongs to this job (its scheduler's cgroup or the job's own processes).
    fn is_of_job(&mut self, journal: &Journal, pid: i32) -> bool;
    /// SIGKILL to a client of the job that [`Members::is_of_job`] proved.
    fn kill_client(&mut self, pid: i32);
}

/// The node's scheduler, as far as root tells it something.
pub trait Drains {
    /// The reason of a drain of `node` that its scheduler has not got yet.
    fn undelivered(&mut self, node: &str) -> Option<String>;
    /// Drains the node for `fault` of `job` and remembers it. Returns a line for the log, and whether the scheduler has it.
    fn drain(
        &mut self,
        place: &Place<'_>,
        prefix: &str,
        job: &JobId,
        fault: &Fault,
        gpus: Vec<String>,
    ) -> (String, bool);
    /// Shows the administrator a failure that does not drain, as the note of the node. A line for the log, where something was
    /// tried.
    fn remark(&mut self, place: &Place<'_>, prefix: &str, failure: &Failure) -> Option<String>;
    /// Takes these notes off the node: a start worked. Lines for the log.
    fn withdraw_remarks(&mut self, site: &Site) -> Vec<String>;
    /// Tells the job's user why it has no MPS, where he looks at his job, and with `aloud` where he waits for it.
    ///
    /// # Errors
    /// One line.
    fn tell(&mut self, place: &Place<'_>, job: &JobId, line: &str, aloud: bool) -> Result<(), String>;
    /// Tells the user of a batch job that ends refused, where its output does not.
    ///
    /// # Errors
    /// One line.
    fn tell_refused(&mut self, place: &Place<'_>, job: &JobId, line: &str) -> Result<(), String>;
    /// Writes a line into the output file of a batch job that went back into its queue, as its user `user`.
    ///
    /// # Errors
    /// One line.
    fn note(&mut self, place: &Place<'_>, job: &JobId, user: &UserRef, line: &str) -> Result<(), String>;
    /// A start has worked of a job that had been tried before: its user is no longer told of the failed ones.
    ///
    /// # Errors
    /// One line.
    fn forget_failed(&mut self, place: &Place<'_>, job: &JobId) -> Result<(), String>;
    /// Puts a job back into its queue; held once `most` starts of its MPS had failed before.
    ///
    /// # Errors
    /// One line.
    fn requeue(&mut self, place: &Place<'_>, job: &JobId, most: u32) -> Result<Requeued, String>;
    /// Ends a job that is a script; whether it is one.
    ///
    /// # Errors
    /// One line.
    fn end_script(&mut self, place: &Place<'_>, job: &JobId) -> Result<bool, String>;
}

/// How grave a line is; the numbers are syslog's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The node is broken.
    Error = 3,
    /// Something did not work, and nothing is proved.
    Warning = 4,
    /// What was done.
    Info = 6,
}

/// Where lines go, and how much time there is.
pub trait Console {
    /// One line to the node's log.
    fn log(&mut self, severity: Severity, line: &str);
    /// An entry of the audit trail to the node's log.
    fn audit(&mut self, entry: &Entry) {
        self.log(Severity::Info, &entry.line);
    }
    /// One line to whoever started the program.
    fn complain(&mut self, line: &str);
    /// Time for the whole teardown.
    fn teardown_time(&self) -> Duration;
    /// Seconds since the boot.
    fn since_boot(&self) -> u64;
    /// Does nothing until `end`.
    fn wait_until(&mut self, end: Deadline);
}

/// All of it.
pub trait Node: Gpus + Store + Daemons + Members + Drains + Console {}

impl<N: Gpus + Store + Daemons + Members + Drains + Console> Node for N {}
