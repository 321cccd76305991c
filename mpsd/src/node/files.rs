//! Files of this node, by descriptors. What users own is touched by a child with a deadline.

use super::real::RealNode;
use super::{by_child, log, reports};
use crate::job::Journal;
use crate::job::node::{Files, LockGuard, NodeSettings, Severity};
use crate::job::report::JobOutcome;
use mpsd_core::JobId;
use mpsd_core::file::Durability;
use mpsd_core::record::is_absent;
use mpsd_sys::deadline::Deadline;
use mpsd_sys::files::{Bounds, Dir, FileError, TmpfsSize, has_namespace, has_no_mounts, lacking};
use mpsd_sys::guard::AskError;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sched::{CloneFlags, setns};
use nix::unistd::{chroot, fchdir};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PRIVATE: u32 = 0o700;
const NOTHING: &str = ".mpsd-nothing";
/// How much longer than its work a child may take to say why it failed.
const ANSWER_TIME: Duration = Duration::from_millis(200);
const ROOT: (u32, u32) = (0, 0);

fn parent(path: &Path) -> Result<(Dir, &OsStr), FileError> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok((Dir::open(parent)?, name)),
        _ => Err(FileError::unfit(path, "is not the path of an entry")),
    }
}

impl Files for RealNode {
    fn settings(&self) -> &NodeSettings {
        &self.settings
    }

    fn lock(&mut self, path: &Path, deadline: Deadline) -> Result<LockGuard, FileError> {
        let (dir, name) = parent(path)?;
        Ok(Box::new(dir.lock(name, deadline)?))
    }

    fn is_locked(&self, path: &Path) -> bool {
        parent(path).is_ok_and(|(dir, name)| dir.is_locked(name))
    }

    fn is_there(&self, path: &Path) -> bool {
        // An error counts as "there": the next read says why.
        !is_absent(path)
    }

    fn read(&mut self, path: &Path, max: usize) -> Result<Option<Vec<u8>>, FileError> {
        match parent(path) {
            Err(error) if error.is_absent() => Ok(None),
            found => found.and_then(|(dir, name)| dir.read_limited(name, max)),
        }
    }

    fn write(
        &mut self,
        path: &Path,
        bytes: &[u8],
        mode: u32,
        durability: Durability,
    ) -> Result<(), FileError> {
        let (dir, name) = parent(path)?;
        dir.write(name, bytes, mode, durability)
    }

    fn remove_file(&mut self, path: &Path) -> Result<(), FileError> {
        match parent(path) {
            Err(error) if error.is_absent() => Ok(()),
            found => found.and_then(|(dir, name)| dir.remove_file(name).map(drop)),
        }
    }

    fn create_dir(&mut self, path: &Path, mode: u32) -> Result<(), FileError> {
        let (dir, name) = parent(path)?;
        dir.create_dir(name, mode, ROOT).map(drop)
    }

    fn names(&self, path: &Path) -> Result<Vec<String>, FileError> {
        let Some(dir) = Dir::find(path)? else {
            return Ok(Vec::new());
        };
        // Only root makes entries there, and an entry that is not listed would stay for good.
        let names = dir.names(usize::MAX)?.into_iter();
        let mut names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
        names.sort();
        Ok(names)
    }

    fn remove_tree(&mut self, path: &Path, bounds: Bounds) -> Result<(), FileError> {
        match parent(path) {
            Err(error) if error.is_absent() => Ok(()),
            found => found.and_then(|(dir, name)| dir.remove_tree(name, bounds).map(drop)),
        }
    }

    fn make_users_directory(
        &mut self,
        journal: &Journal,
        path: &Path,
        room: TmpfsSize,
    ) -> Result<(), FileError> {
        let owner = (journal.uid(), journal.gid);
        bounded(self, journal.job(), path, room, owner)
    }

    /// Follows no link, and bounds every wait.
    fn remove_users_directories(
        &mut self,
        paths: &[PathBuf],
        bounds: Bounds,
    ) -> Result<(), String> {
        let Some(job) = paths.first().and_then(|path| path.parent()) else {
            return Ok(());
        };
        let remove = || enter_first_namespace(job).and_then(|()| remove_from(job, paths, bounds));
        let end = Deadline::after(bounds.deadline.remaining() + ANSWER_TIME);
        by_child(end, remove)
            .map_err(|none| format!("{none}: is one of its user's processes in it?"))?
    }

    /// A child removes a name that is not there, which takes the lock as a daemon does that removes
    /// its sockets. The user's FUSE mounts could delay it, so they are aborted first.
    fn are_directories_kept(&mut self, paths: &[PathBuf], limit: Duration) -> bool {
        let touch = || {
            let job = paths.first().and_then(|path| path.parent());
            let _ = job.map(|job| Dir::open(job).map(|job| job.abort_users_mounts()));
            for path in paths {
                let _ = Dir::open(path).and_then(|dir| dir.remove_file(NOTHING));
            }
        };
        matches!(
            by_child(Deadline::after(limit), touch),
            Err(AskError::Killed(_))
        )
    }

    fn lacking(&self, path: &Path) -> Option<String> {
        lacking(path)
    }

    fn keep(&mut self, outcome: JobOutcome<'_>) {
        let (paths, limit) = (&self.settings.paths, self.settings.teardown / 4);
        let Err(why) = reports::keep(paths, &self.in_force.reports, outcome, limit) else {
            return;
        };
        let line = match outcome {
            JobOutcome::Ended(report) | JobOutcome::NotStarted(report) => {
                format!("job {}: no report: {why}", report.job)
            }
            JobOutcome::Failed(_) => format!("a failed start is not counted: {why}"),
            JobOutcome::Drained => format!("a drain is not counted: {why}"),
        };
        log::line(self.program, Severity::Info, &line);
    }
}

/// A file that a user keeps open outlives its removal. So the directory is a file system of its
/// own, which ends with it.
fn bounded(
    node: &RealNode,
    job: &JobId,
    path: &Path,
    room: TmpfsSize,
    owner: (u32, u32),
) -> Result<(), FileError> {
    // Tasks that do not see the mount would find no daemon, and run outside of MPS
    // (docs/facts/slurm.md#processes-that-a-callback-starts).
    let has_namespace = || has_namespace(job.whole().as_str());
    if !node.namespace_kept.get_or_init(has_namespace) {
        let Err(error) = covered(node, path, room, owner) else {
            return Ok(());
        };
        let _ = parent(path).map(|(dir, name)| dir.remove_empty_dir(name));
        if !has_no_mounts(&error) {
            return Err(error);
        }
        let line = format!(
            "job {job}: '{}' has no bound of room: {error}",
            path.display()
        );
        log::line(node.program, Severity::Info, &line);
    }
    let (dir, name) = parent(path)?;
    dir.create_dir(name, PRIVATE, owner).map(drop)
}

fn covered(
    node: &RealNode,
    path: &Path,
    room: TmpfsSize,
    owner: (u32, u32),
) -> Result<(), FileError> {
    Dir::private(
        node.settings.paths.run(),
        Deadline::after(node.settings.lock_time),
    )?;
    let (dir, name) = parent(path)?;
    // Only a process that sees the cover may enter.
    let (point, _) = dir.create_dir(name, PRIVATE, ROOT)?;
    point.cover(room, PRIVATE, owner)
}

/// The lock of `job` lets only one of several removals hang.
fn remove_from(job: &Path, paths: &[PathBuf], bounds: Bounds) -> Result<(), String> {
    let Some(dir) = Dir::find(job).map_err(|e| e.to_string())? else {
        return Ok(());
    };
    dir.abort_users_mounts();
    let own = File::open(job).map_err(|e| e.to_string())?;
    let Ok(_lock) = Flock::lock(own, FlockArg::LockExclusiveNonblock) else {
        return Err(format!(
            "'{}': an earlier removal hangs in it",
            job.display()
        ));
    };
    let names = paths.iter().filter_map(|path| path.file_name());
    let mut removed = names.map(|name| dir.remove_tree(name, bounds));
    removed.try_for_each(|one| one.map(drop).map_err(|e| e.to_string()))
}

/// Moves this process into the mount namespace and the root of the first process, if `path` is the
/// same directory there. A unit's namespace may hold hidden copies of the mounts on jobs'
/// directories, which keep such a directory busy for a process in it. A scheduler in a container
/// has another `path`.
///
/// After an error this process must do nothing more: it may be in the namespace, but not in its
/// root.
fn enter_first_namespace(path: &Path) -> Result<(), String> {
    const ROOT: &str = "/proc/1/root";
    let identity = |path: &Path| path.metadata().ok().map(|about| (about.dev(), about.ino()));
    let namespaces = ["/proc/self/ns/mnt", "/proc/1/ns/mnt"].map(|path| identity(Path::new(path)));
    let there = Path::new(ROOT).join(path.strip_prefix("/").unwrap_or(path));
    let is_same = identity(path).is_some() && identity(path) == identity(&there);
    let (Ok(root), Ok(first)) = (File::open(ROOT), File::open("/proc/1/ns/mnt")) else {
        return Ok(());
    };
    if !is_same || namespaces[0] == namespaces[1] || setns(&first, CloneFlags::CLONE_NEWNS).is_err()
    {
        return Ok(());
    }
    let entered = fchdir(&root).and_then(|()| chroot("."));
    entered.map_err(|errno: Errno| format!("cannot enter '{ROOT}': {}", errno.desc()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::store::Store as _;
    use crate::node::testing::node;
    use mpsd_core::{Failure, GpuUuid};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn job() -> JobId {
        JobId::parse("64.srv").unwrap()
    }

    /// A stopped prologue may hold it.
    #[test]
    fn a_lock_that_another_holds_is_not_waited_for_beyond_the_limit() {
        let place = tempfile::tempdir().unwrap();
        let limit = Duration::from_secs(1);
        let gpu = GpuUuid::parse("GPU-01").unwrap();
        let mut holder = node(place.path(), limit);
        let held = (
            holder.open_job(&job()).unwrap(),
            holder.lock_gpu(&gpu).unwrap(),
        );
        let (tell, told) = std::sync::mpsc::channel();
        let path = place.path().to_owned();
        std::thread::spawn(move || {
            let mut late = node(&path, limit);
            let refused = [late.open_job(&job()).err(), late.lock_gpu(&gpu).err()];
            tell.send(refused.map(|why| matches!(why, Some(Failure::Undetermined(_)))))
        });
        let refused = told.recv_timeout(20 * limit).expect("an answer");
        assert_eq!(refused, [true, true]);
        drop(held);
    }

    /// Another start would use the directory that is being removed.
    #[test]
    fn a_job_whose_directory_stays_keeps_its_lock() {
        let place = tempfile::tempdir().unwrap();
        let held = node(place.path(), Duration::from_secs(20)).open_job(&job());
        let mut late = node(place.path(), Duration::ZERO);
        assert!(late.remove_job(&job()).is_err(), "there is no time");
        assert!(late.has_directory(&job()) && late.has_lock(&job()));
        drop(held.unwrap());
    }

    /// One end leaves the mark for a start under way, while another removes the directory.
    #[test]
    fn a_job_whose_directory_is_removed_while_its_start_is_cancelled_is_no_fault() {
        let place = tempfile::tempdir().unwrap();
        let limit = Duration::from_secs(20);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut other = node(place.path(), limit);
                while !over.load(Ordering::Relaxed) {
                    other.remove_job(&job()).expect("removed");
                }
            });
            let cancel = |_| node(place.path(), limit).cancel(&job());
            let failed = (0..3000).map(cancel).find(Result::is_err);
            over.store(true, Ordering::Relaxed);
            assert_eq!(failed, None);
        });
    }
}
