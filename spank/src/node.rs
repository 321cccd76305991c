//! This node's files, as [`Node`].

use crate::handle::{Ended, Node, Program};
use mpsd_core::JobId;
use mpsd_core::config::{Config, Settings};
use mpsd_core::record::{self, Look, Record, Step, Waiting};
use mpsd_core::replace::{Until, replace};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::fs::DirBuilder;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a change may stay unseen if the kernel does not tell (no inotify instance left for this user).
const LOOK: Duration = Duration::from_millis(250);

/// The real node.
pub struct ThisNode;

impl Node for ThisNode {
    fn settings(&self, path: &Path, name: Option<&str>) -> Result<Settings, String> {
        let config = Config::load(path).map_err(|e| e.to_string())?;
        // No GPU's product is known here, and nothing that we need may depend on it.
        config.for_node(&node_name(name), &[]).map_err(|e| e.to_string())
    }

    fn run(&self, program: &Program) -> Ended {
        crate::sys::run(program)
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

    fn settled_record(&self, path: &Path, deadline: Duration) -> Result<Option<Record>, String> {
        let begin = Instant::now();
        let mut waiting = Waiting::new(deadline);
        loop {
            // Watched before it is read, so that no change falls between.
            let watch = watch(path);
            match waiting.step(record::look(path)?, begin.elapsed()) {
                Step::Without => return Ok(None),
                Step::Settled(record) => return Ok(Some(*record)),
                Step::Denied(why) => return Err(why),
                Step::Wait(left) => wait(watch.as_ref(), left),
            }
        }
    }
}

/// Slurm's name of this node, else the host's.
fn node_name(name: Option<&str>) -> String {
    let host = || nix::unistd::gethostname().ok()?.into_string().ok();
    name.map(str::to_owned).or_else(host).unwrap_or_default()
}

/// A watch on the file itself: it is replaced by rename, which takes the old one's last name. Its directory cannot be
/// watched, since the user may pass it (0711) but not read it.
fn watch(path: &Path) -> Option<Inotify> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok()?;
    let flags = AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_CLOSE_WRITE;
    inotify.add_watch(path, flags).ok()?;
    Some(inotify)
}

fn wait(watch: Option<&Inotify>, left: Duration) {
    let limit = left.min(LOOK);
    let Some(watch) = watch else {
        return std::thread::sleep(limit.min(LOOK / 10));
    };
    let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::ZERO);
    let _ = poll(&mut fds, timeout);
}

#[cfg(test)]
mod tests;
