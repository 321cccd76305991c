//! What stands between the plugin and the world: Slurm on one side, this node's files and programs on the other.
//! The real ones are in [`crate::sys`] and [`crate::node`]; unit tests bring their own.

use mpsd_core::config::Settings;
use mpsd_core::environment::Change;
use mpsd_core::killed::KilledTask;
use mpsd_core::observations::Observations;
use mpsd_core::record::Record;
use mpsd_core::request::Key;
use mpsd_core::{JobId, JobPaths};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Which program loaded the plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Context {
    /// srun.
    Local,
    /// sbatch, salloc, scrontab.
    Allocator,
    /// slurmstepd with a step.
    Remote,
    /// slurmd itself.
    Slurmd,
    /// `slurmstepd spank prolog|epilog`.
    JobScript,
    /// Anything else: nothing is done.
    Unknown,
}

/// A number that Slurm knows of the job, step or task, each of 32 bits, by its own number in `enum spank_item` (spank.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Item {
    /// The user.
    JobUid = 0,
    /// The user's group.
    JobGid = 1,
    /// The job, for a het job the component.
    JobId = 2,
    /// The step; see [`crate::stepd`] for those that are none.
    StepId = 3,
    /// Tasks of the step on this node.
    LocalTasks = 6,
    /// The task's rank on this node; in task hooks only.
    TaskId = 11,
    /// How the task ended, as wait(2) says; in `task_exit` only.
    TaskExitStatus = 13,
    /// The task's rank in the step; in task hooks only.
    TaskGlobalId = 12,
    /// Its pid; in `task_exit` also of the process that has ended.
    TaskPid = 14,
}

/// How loud a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The user's terminal in srun, sbatch, salloc and `task_init`; slurmd's log elsewhere.
    Error,
    /// As an error, where it is none.
    Told,
    /// Never the user's terminal from a node.
    Info,
    /// Only with `-v`.
    Verbose,
}

/// Slurm, during one callback.
pub trait Slurm {
    /// Which program this is.
    fn context(&self) -> Context;
    /// A number; `None` where Slurm does not have it in this callback.
    fn item(&self, item: Item) -> Option<u32>;
    /// A variable of the step's environment. The user's, but for what Slurm itself overwrote.
    fn job_env(&self, name: &str) -> Option<String>;
    /// A variable of this process.
    fn process_env(&self, name: &str) -> Option<String>;
    /// All variables of this process that are UTF-8.
    fn all_process_env(&self) -> Vec<(String, String)>;
    /// Sets a variable of the step's environment.
    fn set_job_env(&mut self, name: &str, value: &str) -> bool;
    /// Removes a variable of the step's environment.
    fn unset_job_env(&mut self, name: &str) -> bool;
    /// Sets `SPANK_<name>` for job_prolog and job_epilog; local and allocator context only.
    fn set_script_env(&mut self, name: &str, value: &str) -> bool;
    /// Takes back `SPANK_<name>`, which srun has from the environment; local and allocator context only.
    fn unset_script_env(&mut self, name: &str);
    /// Sets a variable of this process, or removes it: srun's, sbatch's or salloc's own, which the job inherits.
    fn set_process_env(&mut self, name: &str, value: Option<&str>);
    /// The command line of this process.
    fn command_line(&self) -> Vec<String>;
    /// The task prolog that srun will ask for.
    fn task_prolog(&self) -> Option<String>;
    /// Has srun ask for another one; empty: for none.
    fn set_task_prolog(&mut self, path: &str);
    /// Whether this process submits a script.
    fn is_batch(&self) -> bool;
    /// Registers the flag of an option.
    fn register(&mut self, key: Key) -> bool;
    /// Whether the flag of an option was given, and with what argument, where callbacks do not run.
    fn option(&self, key: Key) -> Option<Option<String>>;
    /// One line.
    fn log(&self, level: Level, line: &str);

    /// The job of this process; for a het job the component.
    fn job(&self) -> Option<JobId> {
        JobId::parse(&self.item(Item::JobId)?.to_string()).ok()
    }
}

/// A program of ours to run as root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Absolute path.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Its whole environment.
    pub environment: Vec<(String, String)>,
    /// How long it may take; then its process group is killed.
    pub limit: Duration,
    /// As no descendant of ours: what ends a step's processes (a scancel, the end of the job) finds them by their
    /// parents, and must not end a cleaning. The exit code is not known then, and counts as 0.
    pub detached: bool,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code, or why there is none.
    pub code: Result<i32, String>,
    /// What it wrote, in lines, made printable.
    pub lines: Vec<String>,
}

/// This node.
pub trait Node {
    /// The configuration at `path`, for the node that Slurm calls `name`.
    fn settings(&self, path: &Path, name: Option<&str>) -> Result<Settings, String>;
    /// Runs a program and waits for it.
    fn run(&self, program: &Program) -> Ended;
    /// Whether there is a directory in `jobs` of this job or of one of its steps.
    fn has_directories(&self, jobs: &Path, job: &JobId) -> bool;
    /// Whether there is a file `mark`.
    fn has_mark(&self, mark: &Path) -> bool;
    /// Whether the control daemon to which `changes` send a task listens; why it does not, as an error. For the job's user alone.
    fn expect_listener(&self, changes: &[Change]) -> Result<(), String>;
    /// The record at `path`: `Ok(None)` when there is none.
    fn record(&self, path: &Path) -> Result<Option<Record>, String>;
    /// Leaves a record for the job's tasks where `mps-prologue` could not; root only.
    fn leave_record(&self, path: &Path, record: &Record) -> Result<(), String>;
    /// What the job's `mpsd` has seen so far.
    fn observations(&self, job: &JobPaths) -> Option<Observations>;
    /// What the job's `mpsd` has said for its user and nobody has told yet. It is told by the caller then: nobody else gets it.
    fn untold(&self, job: &JobPaths) -> Vec<String>;
    /// Notes a task of the job that a signal ended, for its report; root only.
    fn note_killed(&self, job: &JobPaths, task: &KilledTask);
    /// How many processes of the job of this process the kernel's out-of-memory killer has ended; 0 where that cannot be seen.
    fn oom_kills(&self) -> u64;
    /// Opens what a step locks whose ranks have the job's static partitions; root only, for tasks that inherit it.
    fn ranks(&self, job: &JobPaths) -> Result<File, String>;
    /// As [`Node::record`], but a record that is still `starting` is waited for: as long as it says itself, else `deadline`.
    fn settled_record(&self, path: &Path, deadline: Duration) -> Result<Option<Record>, String>;
}

/// What a callback wants of Slurm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Continue,
    /// Return -1. Ignored by Slurm where the plugin's line says `optional`.
    Fail,
    /// End this process with code 1, which Slurm notices under `optional` too. Only where the process is the
    /// callback's own: job_prolog, the forked child of task_init, the user's own srun, sbatch or salloc.
    Leave,
}
