//! What stands between the plugin and the world: Slurm, and this node's files and programs. The
//! real ones are in [`crate::sys`] and [`crate::this_node`]; unit tests bring their own.

use mpsd_core::config::Settings;
use mpsd_core::environment::Change;
use mpsd_core::killed::KilledTask;
use mpsd_core::observations::Observations;
use mpsd_core::paths::SeenPaths;
use mpsd_core::record::Record;
use mpsd_core::request::Key;
use mpsd_core::{JobId, JobPaths};
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Context {
    Local,
    /// sbatch, salloc, scrontab.
    Allocator,
    /// slurmstepd with a step.
    Remote,
    Slurmd,
    /// `slurmstepd spank prolog|epilog`.
    JobScript,
    #[default]
    Unknown,
}

/// A number that Slurm knows of the job, step or task, by its place in `enum spank_item` (spank.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    JobUid = 0,
    JobGid = 1,
    /// For a het job the component.
    JobId = 2,
    /// Also numbers that are no step: [`crate::step`].
    StepId = 3,
    LocalTasks = 6,
    /// The task's rank on this node; in task hooks only, as the three below.
    TaskId = 11,
    TaskGlobalId = 12,
    /// As wait(2) says; in `task_exit` only.
    TaskExitStatus = 13,
    /// In `task_exit` the process that has ended.
    TaskPid = 14,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The user's terminal in srun, sbatch, salloc and `task_init`; slurmd's log elsewhere.
    Error,
    /// The same, without a word like `error:` before it.
    Notice,
    /// A log; from a node never the user's terminal.
    Info,
}

pub trait Slurm {
    fn context(&self) -> Context;
    /// `None`: Slurm does not have it in this callback.
    fn item(&self, item: Item) -> Option<u32>;
    /// A variable of the step's environment. The user controls it, except for what Slurm overwrote.
    fn job_env(&self, name: &str) -> Option<String>;
    fn process_env(&self, name: &str) -> Option<String>;
    /// Those that are UTF-8.
    fn all_process_env(&self) -> Vec<(String, String)>;
    /// Sets or removes a variable of the step's environment; false: Slurm refused.
    fn set_job_env(&mut self, name: &str, value: Option<&str>) -> bool;
    /// Sets or removes `SPANK_<name>` for job_prolog and job_epilog; only in what submits.
    fn set_job_control_env(&mut self, name: &str, value: Option<&str>);
    /// Sets or removes a variable of srun, sbatch or salloc itself, which the job inherits.
    fn set_process_env(&mut self, name: &str, value: Option<&str>);
    /// The command of this step, or the path of the batch script; in slurmstepd only.
    fn step_command(&self) -> Vec<String>;
    fn command_line(&self) -> Vec<String>;
    fn task_prolog(&self) -> Option<String>;
    /// An option of Slurm's as srun, sbatch or salloc has it; for a het job the component's.
    /// `None`: this Slurm does not say. `Some(None)`: not given.
    fn submit_option(&self, option: &CStr) -> Option<Option<String>>;
    /// Replaces the task prolog that srun will request; an empty path removes it.
    fn set_task_prolog(&mut self, path: &str);
    fn is_batch(&self) -> bool;
    fn register(&mut self, key: Key);
    /// A flag and its argument, for job_prolog: Slurm calls no option's callback there.
    fn option(&self, key: Key) -> Option<Option<String>>;
    fn log(&self, level: Level, line: &str);

    /// The job of this process; for a het job the component.
    fn job(&self) -> Option<JobId> {
        JobId::parse(&self.item(Item::JobId)?.to_string()).ok()
    }

    fn node_name(&self) -> String {
        let name = self.process_env("SLURMD_NODENAME");
        name.unwrap_or_else(|| "this node".into())
    }

    /// The first task of this node reports what holds for all of them.
    fn is_first_task(&self) -> bool {
        self.item(Item::TaskId).is_none_or(|rank| rank == 0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub path: PathBuf,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// After this time its process group is killed.
    pub limit: Duration,
    /// Runs it as no descendant of this process: a scancel or the job's end, which finds processes
    /// by their parents, must not end a cleanup. The exit code then counts as 0.
    pub detached: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramResult {
    pub code: Result<i32, String>,
    /// Printable.
    pub lines: Vec<String>,
}

pub trait Node {
    fn settings(&self, path: &Path, name: Option<&str>) -> Result<Settings, String>;
    fn run(&self, program: &Program) -> ProgramResult;
    /// Whether `jobs` has a directory of this job or of one of its steps.
    fn has_directories(&self, jobs: &Path, job: &JobId) -> bool;
    fn exists(&self, path: &Path) -> bool;
    /// Proves, as the job's user, that the control daemon to which `changes` send a task listens.
    fn expect_listener(&self, changes: &[Change]) -> Result<(), String>;
    fn record(&self, path: &Path) -> Result<Option<Record>, String>;
    /// Waits while the record says `starting`: as long as it says itself, else for `limit`.
    fn settled_record(&self, path: &Path, limit: Duration) -> Result<Option<Record>, String>;
    fn text_of(&self, path: &Path) -> Option<String>;
    /// Writes a record for the job's tasks if `mps-prologue` could not; root only.
    fn write_record(&self, path: &Path, record: &Record) -> Result<(), String>;
    fn observations(&self, seen: &SeenPaths) -> Option<Observations>;
    /// The last words of the job's `mpsd`, each of them once; `None`: none to show, or another step
    /// takes them now.
    fn take_last_words(&self, seen: &SeenPaths) -> Option<Vec<String>>;
    /// For the job's report, which lacks the task after a failure; root only.
    fn note_killed(&self, job: &JobPaths, task: &KilledTask) -> Option<()>;
    fn oom_kills(&self) -> Option<u64>;
    /// By slurmstepd's cgroup: a user may have set `SLURM_JOB_SLUID` in the step's environment.
    fn sluid(&self) -> Option<String>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Continue,
    /// Return -1. Slurm ignores it if the plugin's line says `optional`.
    Fail,
    /// End this process with code 1, which Slurm notices under `optional` too. Only for a process
    /// that is the callback's own: job_prolog, the child of task_init, the user's command.
    EndProcess,
}
