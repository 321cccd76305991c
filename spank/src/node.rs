//! This node's files, as [`Node`].

use crate::handle::{Ended, Node, Program};
use crate::sys::spawn::run;
use mpsd_core::config::{Config, Settings};
use mpsd_core::environment::Change;
use mpsd_core::killed::KilledTask;
use mpsd_core::listener;
use mpsd_core::observations::{self, Observations};
use mpsd_core::record::{self, Record, RecordRead};
use mpsd_core::replace::{Durability, replace};
use mpsd_core::trusted::open_trusted;
use mpsd_core::{JobId, JobPaths};
use nix::fcntl::{Flock, FlockArg, OFlag, open};
use nix::sys::stat::Mode;
use std::fs::{DirBuilder, File};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The real node.
pub struct ThisNode;

impl Node for ThisNode {
    fn settings(&self, path: &Path, name: Option<&str>) -> Result<Settings, String> {
        let node = node_name(name);
        // No GPU's product is known here, and nothing that we need may depend on it.
        let settings = Config::load(path).and_then(|config| config.for_node(&node, &[]));
        settings.map_err(|broken| broken.to_user(&node).to_string())
    }

    fn run(&self, program: &Program) -> Ended {
        run(program)
    }

    fn has_directories(&self, jobs: &Path, job: &JobId) -> bool {
        let Ok(entries) = std::fs::read_dir(jobs) else {
            return false;
        };
        let name = job.directory_name();
        // By name: that of a step's directory is its id, which is short.
        entries.flatten().any(|entry| {
            let found = entry.file_name();
            let Some(found) = found.to_str() else { return false };
            found == name || JobId::parse(found).is_ok_and(|id| id.belongs_to(job))
        })
    }

    fn has_mark(&self, mark: &Path) -> bool {
        mark.symlink_metadata().is_ok()
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

    fn leave_record(&self, path: &Path, record: &Record) -> Result<(), String> {
        let text = record.to_text()?;
        if let Some(directory) = path.parent() {
            // Every directory on the way is root's, or mps-prologue and the tasks would not trust it either.
            let made = DirBuilder::new().recursive(true).mode(0o711).create(directory);
            made.map_err(|e| format!("cannot make '{}': {e}", directory.display()))?;
        }
        replace(path, text.as_bytes(), 0o644, Durability::Placed).map_err(|e| e.to_string())
    }

    fn observations(&self, job: &JobPaths) -> Option<Observations> {
        Observations::parse(
            &open_trusted(&job.observations())
                .ok()?
                .read(observations::LONGEST)
                .ok()?,
        )
    }

    fn untold(&self, job: &JobPaths) -> Vec<String> {
        take_untold(job).unwrap_or_default()
    }

    fn note_killed(&self, job: &JobPaths, task: &KilledTask) {
        // What cannot be noted is not in the report, and that is all.
        let _ = append_killed(job, task);
    }

    fn oom_kills(&self) -> u64 {
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        oom_kills(&own, Path::new("/sys/fs/cgroup")).unwrap_or_default()
    }

    fn ranks(&self, job: &JobPaths) -> Result<File, String> {
        let flags = OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let opened = open(&job.partitions_lock(), flags, Mode::empty());
        let shown = |e| format!("cannot open '{}': {e}", job.partitions_lock().display());
        opened.map(File::from).map_err(shown)
    }

    fn settled_record(&self, path: &Path, deadline: Duration) -> Result<Option<Record>, String> {
        record::settled(path, deadline)
    }
}

/// The last words beyond those that the file `told` counts, which counts them then. Root's files in root's directory; `None`:
/// there is nothing, or somebody else tells it just now.
fn take_untold(job: &JobPaths) -> Option<Vec<String>> {
    let words = ThisNode.observations(job)?.last_words;
    // It was made with the job: made here it would stand in the way of an end that removes the directory just now.
    let flags = OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = File::from(open(&job.told(), flags, Mode::empty()).ok()?);
    let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()?;
    let mut number = [0; 8];
    let length = file.read_at(&mut number, 0).ok()?;
    let told = std::str::from_utf8(&number[..length]).ok()?.parse().unwrap_or(0);
    let untold = words.get(told..).filter(|untold| !untold.is_empty())?;
    file.write_all_at(words.len().to_string().as_bytes(), 0).ok()?;
    Some(untold.to_vec())
}

/// Root's file in root's directory. It was made with the job, as `told`.
fn append_killed(job: &JobPaths, task: &KilledTask) -> Option<()> {
    let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let mut file = File::from(open(&job.killed(), flags, Mode::empty()).ok()?);
    let line = task.line(file.metadata().ok()?.len())?;
    // One write, so that lines of two steps do not mix.
    file.write_all(line.as_bytes()).ok()
}

/// The count of the job's cgroup, in which Slurm keeps slurmstepd as well (`job_N/step_M/slurm`); version 2 alone counts for all
/// below a cgroup. `own`: `/proc/self/cgroup`.
fn oom_kills(own: &str, mounted: &Path) -> Option<u64> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let at = path.split('/').position(|name| name.starts_with("job_"))?;
    let of_job: PathBuf = path.split('/').take(at + 1).collect();
    let events = std::fs::read_to_string(mounted.join(of_job).join("memory.events")).ok()?;
    let count = events.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
    count.parse().ok()
}

/// Slurm's name of this node, else the host's.
fn node_name(name: Option<&str>) -> String {
    let host = || nix::unistd::gethostname().ok()?.into_string().ok();
    name.map(str::to_owned).or_else(host).unwrap_or_default()
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
