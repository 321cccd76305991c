//! This node's files, as [`Node`].

use crate::handle::{Ended, Node, Program};
use crate::sys::spawn::run;
use mpsd_core::config::{Config, Settings};
use mpsd_core::record::{self, Look, Record};
use mpsd_core::replace::{Until, replace};
use mpsd_core::seen::{self, Seen};
use mpsd_core::trusted::open_trusted;
use mpsd_core::{JobId, JobPaths};
use nix::fcntl::{Flock, FlockArg, OFlag, open};
use nix::sys::stat::Mode;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;
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

    fn record(&self, path: &Path) -> Result<Option<Record>, String> {
        match record::look(path)? {
            Look::Found(record) => Ok(Some(*record)),
            Look::Absent => Ok(None),
            Look::Denied(why) => Err(why),
        }
    }

    fn leave_record(&self, path: &Path, record: &Record) -> Result<(), String> {
        let text = record.to_text()?;
        if let Some(directory) = path.parent() {
            // Every directory on the way is root's, or mps-prologue and the tasks would not trust it either.
            let made = DirBuilder::new().recursive(true).mode(0o711).create(directory);
            made.map_err(|e| format!("cannot make '{}': {e}", directory.display()))?;
        }
        replace(path, text.as_bytes(), 0o644, Until::Placed).map_err(|e| e.to_string())
    }

    fn seen(&self, job: &JobPaths) -> Option<Seen> {
        Seen::parse(&open_trusted(&job.seen()).ok()?.read(seen::LONGEST).ok()?)
    }

    fn untold(&self, job: &JobPaths) -> Vec<String> {
        take_untold(job).unwrap_or_default()
    }

    fn ranks(&self, job: &JobPaths) -> Result<File, String> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let opened = open(&job.ranks(), flags, Mode::S_IRUSR | Mode::S_IWUSR);
        let shown = |e| format!("cannot open '{}': {e}", job.ranks().display());
        opened.map(File::from).map_err(shown)
    }

    fn settled_record(&self, path: &Path, deadline: Duration) -> Result<Option<Record>, String> {
        record::settled(path, deadline)
    }
}

/// The last words beyond those that the file `told` counts, which counts them then. Root's files in root's directory; `None`:
/// there is nothing, or somebody else tells it just now.
fn take_untold(job: &JobPaths) -> Option<Vec<String>> {
    let words = ThisNode.seen(job)?.last_words;
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

/// Slurm's name of this node, else the host's.
fn node_name(name: Option<&str>) -> String {
    let host = || nix::unistd::gethostname().ok()?.into_string().ok();
    name.map(str::to_owned).or_else(host).unwrap_or_default()
}

#[cfg(test)]
mod tests;
