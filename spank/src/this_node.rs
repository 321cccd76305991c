//! This node's files, as [`Node`].

use crate::handle::{Node, Program, ProgramResult};
use crate::sys::spawn;
use mpsd_core::JobId;
use mpsd_core::by_site;
use mpsd_core::config::Settings;
use mpsd_core::environment::Change;
use mpsd_core::file::{Durability, replace};
use mpsd_core::killed::KilledTask;
use mpsd_core::listener;
use mpsd_core::observations::{self, Observations};
use mpsd_core::paths::{JobPaths, KILLED, SeenPaths};
use mpsd_core::record::{self, Record, RecordRead};
use mpsd_core::trusted::open_trusted;
use nix::fcntl::{Flock, FlockArg, OFlag, open};
use nix::sys::stat::Mode;
use std::fs::{DirBuilder, File};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;
use std::time::Duration;

pub struct ThisNode;

const OWN_CGROUP: &str = "/proc/self/cgroup";

impl Node for ThisNode {
    fn settings(&self, path: &Path, name: Option<&str>) -> Result<Settings, String> {
        let host = || nix::unistd::gethostname().ok()?.into_string().ok();
        let node = name.map(str::to_owned).or_else(host).unwrap_or_default();
        Settings::load(path, &node).map_err(|broken| broken.to_user(&node).to_string())
    }

    fn run(&self, program: &Program) -> ProgramResult {
        spawn::run(program)
    }

    fn has_directories(&self, jobs: &Path, job: &JobId) -> bool {
        let own = job.directory_name();
        // By name: a step's directory has its id, which is short.
        let belongs =
            |name: &str| name == own || JobId::parse(name).is_ok_and(|id| id.belongs_to(job));
        let mut entries = std::fs::read_dir(jobs).into_iter().flatten().flatten();
        entries.any(|entry| entry.file_name().to_str().is_some_and(belongs))
    }

    fn exists(&self, path: &Path) -> bool {
        path.symlink_metadata().is_ok()
    }

    fn expect_listener(&self, changes: &[Change]) -> Result<(), String> {
        listener::expect(changes).map_err(|ended| ended.to_string())
    }

    fn record(&self, path: &Path) -> Result<Option<Record>, String> {
        match record::look(path)? {
            RecordRead::Found(record) => Ok(Some(*record)),
            RecordRead::Absent => Ok(None),
            RecordRead::Denied(why) => Err(why),
        }
    }

    fn settled_record(&self, path: &Path, limit: Duration) -> Result<Option<Record>, String> {
        record::settled(path, limit)
    }

    fn text_of(&self, path: &Path) -> Option<String> {
        by_site::text_of(path)
    }

    fn write_record(&self, path: &Path, record: &Record) -> Result<(), String> {
        let text = record.to_text()?;
        if let Some(directory) = path.parent() {
            // Every directory on the way is root's, or mps-prologue and the tasks would not trust
            // it either.
            let mut builder = DirBuilder::new();
            let made = builder.recursive(true).mode(0o711).create(directory);
            made.map_err(|e| format!("cannot make '{}': {e}", directory.display()))?;
        }
        replace(path, text.as_bytes(), 0o644, Durability::Placed).map_err(|e| e.to_string())
    }

    fn observations(&self, seen: &SeenPaths) -> Option<Observations> {
        seen.seen(|path| open_trusted(path).ok()?.read(observations::LONGEST).ok())
    }

    /// The file `told` has their number. `None` also if another step takes them at this moment.
    fn take_last_words(&self, seen: &SeenPaths) -> Option<Vec<String>> {
        let words = self.observations(seen)?.last_words;
        let file = open_existing(&seen.told, OFlag::O_RDWR).ok()?;
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()?;
        let mut number = [0; 8];
        let length = file.read_at(&mut number, 0).ok()?;
        let told = std::str::from_utf8(&number[..length]).ok()?;
        let told = told.parse().unwrap_or(0);
        let untold = words.get(told..).filter(|untold| !untold.is_empty())?;
        file.write_all_at(words.len().to_string().as_bytes(), 0)
            .ok()?;
        Some(untold.to_vec())
    }

    fn note_killed(&self, job: &JobPaths, task: &KilledTask) -> Option<()> {
        let mut file = open_existing(&job.file(KILLED), OFlag::O_WRONLY | OFlag::O_APPEND).ok()?;
        let line = task.line(file.metadata().ok()?.len())?;
        // One write, so that lines of two steps do not mix.
        file.write_all(line.as_bytes()).ok()
    }

    fn oom_kills(&self) -> Option<u64> {
        let own = std::fs::read_to_string(OWN_CGROUP).ok()?;
        oom_kills(&own, Path::new("/sys/fs/cgroup"))
    }

    fn sluid(&self) -> Option<String> {
        let own = std::fs::read_to_string(OWN_CGROUP).ok()?;
        let name = Path::new(job_cgroup(&own)?).file_name()?.to_str()?;
        Some(name.to_owned())
    }
}

/// Root's files were made with the job. Made here, one would stop an end that is removing the
/// directory at this moment.
fn open_existing(path: &Path, access: OFlag) -> nix::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    open(path, access | flags, Mode::empty()).map(File::from)
}

/// The part of slurmstepd's cgroup (version 2) above `step_M/slurm`: `job_N`, or a SLUID.
fn job_cgroup(own: &str) -> Option<&str> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let (of_job, step) = path.strip_suffix("/slurm")?.rsplit_once('/')?;
    step.starts_with("step_").then_some(of_job)
}

/// Only version 2 counts all processes below a cgroup.
fn oom_kills(own: &str, mounted: &Path) -> Option<u64> {
    let of_job = job_cgroup(own)?;
    let events = std::fs::read_to_string(mounted.join(of_job).join("memory.events")).ok()?;
    let mut lines = events.lines();
    let count = lines.find_map(|line| line.strip_prefix("oom_kill "))?;
    count.parse().ok()
}

#[cfg(test)]
#[path = "this_node_tests.rs"]
mod tests;
