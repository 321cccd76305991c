//! Directories, journals, records and accounts on disk.

use super::real::RealNode;
use super::{failed_starts, failure, log, reports, room, suspicions, unless_scarce};
use crate::job::account::Account;
use crate::job::journal::Journal;
use crate::job::node::{Held, Severity, Store};
use crate::job::report::JobReport;
use crate::job::suspicion::Suspicion;
use crate::plan::effects::Exporter;
use crate::sys::deadline::Deadline;
use crate::sys::files::{Bounds, Dir, FileError, LOCK, Room};
use crate::sys::guard::{NoAnswer, ask};
use mpsd_core::failure::{Evidence, FailureKind, Fault, Undetermined};
use mpsd_core::killed::{self, KilledTask};
use mpsd_core::observations::{self, Observations};
use mpsd_core::paths::{CANCELLED, JOURNAL, JobPaths, KILLED, OBSERVATIONS, PARTITIONS, RECORD};
use mpsd_core::record::{self, Look, Record, RecordState};
use mpsd_core::{Failure, GpuUuid, JobId};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::path::Path;
use std::time::Duration;

/// Our own directories: anyone may pass through to a pipe that is theirs, nobody may list.
const PASSABLE: u32 = 0o711;
/// The user's directories: whoever reaches a pipe can shut its owner's server down (docs/facts/mps-control.md#clients).
const PRIVATE: u32 = 0o700;
/// What a job's user may keep where the sockets are: they take five entries and a page.
const PIPE_ROOM: Room = Room {
    bytes: 16 << 20,
    files: 4096,
};
/// The same where NVIDIA's programs write their logs.
const LOG_ROOM: Room = Room {
    bytes: 256 << 20,
    files: 1024,
};
/// Journals and accounts.
const SECRET: u32 = 0o600;
/// The record is for the job's tasks.
const READABLE: u32 = 0o644;
/// Longest journal or account that is read, bytes.
const LONGEST: usize = 1 << 20;
/// Entries that a user may leave behind before their removal is given up.
const MOST_ENTRIES: u64 = 1_000_000;
/// Time to remove what a user left in a job's directories.
const REMOVE_TIME: Duration = Duration::from_secs(5);
/// Longer than this nobody waits for a directory but for one whose lock is kept.
const LOCKED: Duration = Duration::from_millis(500);
/// A file that nobody has in the user's directories.
const NOTHING: &str = ".mpsd-nothing";
/// A child that removes gets so much longer to say why it could not.
const ANSWER_TIME: Duration = Duration::from_millis(200);
/// Root.
const ROOT: (u32, u32) = (0, 0);

/// Removes `names` from the job's directory `path`, which is locked for as long as this goes on: of those who come meanwhile
/// none waits for one that hangs.
fn remove_from(path: &Path, names: &[String], bounds: Bounds) -> Result<(), String> {
    let dir = match Dir::open(path) {
        Err(error) if error.is_absent() => return Ok(()),
        other => other.map_err(|e| e.to_string())?,
    };
    dir.abort_users_mounts();
    let own = std::fs::File::open(path).map_err(|e| e.to_string())?;
    let Ok(_lock) = Flock::lock(own, FlockArg::LockExclusiveNonblock) else {
        return Err(format!("'{}': an earlier removal hangs in it", path.display()));
    };
    let remove = |name: &String| dir.remove_tree(name, bounds).map(drop).map_err(|e| e.to_string());
    names.iter().try_for_each(remove)
}

/// A failure of root's in a place that only root can write is the node's, unless something ran out: the users' pipe and
/// log directories lie in the same file system.
fn fault(error: FileError) -> Failure {
    let (what, why) = match &error {
        FileError::Io { act, path, errno } => {
            let lacking = (*errno == Errno::ENOSPC).then(|| room::lacking(path)).flatten();
            let lacking = lacking.map(|lacking| format!(": {lacking}")).unwrap_or_default();
            let why = errno.desc().to_owned() + &lacking;
            (format!("cannot {act} '{}'", path.display()), why)
        }
        FileError::Unfit { .. } => (error.to_string(), "it is not as we left it".to_owned()),
        // Too many, too large or too late: no evidence, as little as what ran out.
        FileError::Bound { .. } => return Undetermined::new("a bound of ours", error.to_string()).into(),
    };
    failure(unless_scarce(Evidence::Storage, error.errno()), what, why)
}

/// What only root writes cannot be understood, or not be written down.
fn garbled(what: impl Into<String>, why: impl ToString) -> Failure {
    Fault::new(Evidence::Storage, what, why.to_string()).into()
}

/// Opens `path`, making its last components if need be: `/run/mpsd/jobs` after a boot without tmpfiles.
fn make(path: &Path) -> Result<Dir, Failure> {
    if let Some(dir) = find(path)? {
        return Ok(dir);
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Fault::new(
            Evidence::Configuration,
            path.display().to_string(),
            "it has no parent",
        )
        .into());
    };
    make(parent)?
        .create_dir(name, PASSABLE, ROOT)
        .map(|(dir, _)| dir)
        .map_err(fault)
}

/// `path`, if it is there.
fn find(path: &Path) -> Result<Option<Dir>, Failure> {
    Dir::find(path).map_err(fault)
}

fn job_dir(node: &RealNode, job: &JobId) -> Result<Dir, Failure> {
    Dir::open(node.paths.job(job).directory()).map_err(fault)
}

/// `x` of `.x.lock`.
fn locked(name: &str) -> Option<&str> {
    name.strip_prefix('.')?.strip_suffix(".lock")
}

fn names(path: &Path) -> Result<Vec<String>, Failure> {
    let Some(dir) = find(path)? else {
        return Ok(Vec::new());
    };
    // Root alone makes entries there, and one that is not listed would stay for good.
    let names = dir.names(usize::MAX).map_err(fault)?;
    let mut names: Vec<String> = names.into_iter().filter_map(|n| n.into_string().ok()).collect();
    names.sort();
    Ok(names)
}

impl RealNode {
    /// How much of a user's files is removed.
    fn bounds(&self) -> Bounds {
        Bounds {
            entries: MOST_ENTRIES,
            deadline: self.ends.within(REMOVE_TIME),
        }
    }

    /// The lock `name` in `dir`, with a deadline.
    fn lock(&self, dir: &Dir, name: String) -> Result<Held, Failure> {
        match dir.lock(name, Deadline::after(self.lock_time)) {
            Ok(held) => Ok(Box::new(held)),
            Err(error @ (FileError::Bound { .. } | FileError::Io { act: LOCK, .. })) => {
                Err(Undetermined::new("lock", error.to_string()).into())
            }
            Err(error) => Err(fault(error)),
        }
    }

    /// The jobs of which nothing but the lock is left, by their directories' names.
    ///
    /// # Errors
    /// A fault.
    pub fn job_locks(&self) -> Result<Vec<String>, Failure> {
        let all = names(&self.paths.jobs())?;
        let alone = |name: &&str| all.binary_search_by(|other| other.as_str().cmp(name)).is_err();
        Ok(all
            .iter()
            .filter_map(|name| locked(name))
            .filter(alone)
            .map(str::to_owned)
            .collect())
    }
}

impl Store for RealNode {
    /// Locks a GPU's account. The lock file stands beside it and goes with it.
    fn lock_gpu(&mut self, gpu: &GpuUuid) -> Result<Held, Failure> {
        self.lock(&make(&self.paths.gpus())?, format!(".{gpu}.lock"))
    }

    fn read_account(&mut self, gpu: &GpuUuid) -> Result<Option<Account>, Failure> {
        let Some(gpus) = find(&self.paths.gpus())? else {
            return Ok(None);
        };
        // What somebody killed while writing the account left: the lock is ours now.
        gpus.remove_file(format!(".{gpu}.new")).map_err(fault)?;
        let Some(bytes) = gpus.read_limited(gpu.as_str(), LONGEST).map_err(fault)? else {
            return Ok(None);
        };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|e| garbled(format!("account of {gpu}"), e))
    }

    /// Writes a GPU's account, or removes it with its lock, which the caller holds.
    fn write_account(&mut self, gpu: &GpuUuid, account: Option<&Account>) -> Result<(), Failure> {
        let gpus = make(&self.paths.gpus())?;
        match account {
            Some(account) => {
                let text = serde_json::to_vec_pretty(account)
                    .map_err(|e| garbled(format!("account of {gpu}"), e))?;
                gpus.write_atomic(gpu.as_str(), &text, SECRET).map_err(fault)
            }
            None => {
                gpus.remove_file(gpu.as_str()).map_err(fault)?;
                gpus.remove_file(format!(".{gpu}.lock")).map_err(fault)?;
                Ok(())
            }
        }
    }
    fn gpus_with_files(&mut self) -> Result<Vec<GpuUuid>, Failure> {
        let all = names(&self.paths.gpus())?;
        let mut gpus: Vec<GpuUuid> = all
            .iter()
            .filter_map(|name| GpuUuid::parse(locked(name).unwrap_or(name)).ok())
            .collect();
        gpus.sort();
        gpus.dedup();
        Ok(gpus)
    }

    /// Makes the job's directory and takes its lock, which stands beside it: a lock inside would vanish with it.
    fn open_job(&mut self, job: &JobId) -> Result<Held, Failure> {
        let jobs = make(&self.paths.jobs())?;
        let held = self.lock(&jobs, JobPaths::lock_name(job))?;
        jobs.create_dir(job.directory_name(), PASSABLE, ROOT)
            .map_err(fault)?;
        Ok(held)
    }

    fn find_job(&mut self, job: &JobId) -> Result<Option<Held>, Failure> {
        let Some(jobs) = find(&self.paths.jobs())? else {
            return Ok(None);
        };
        let there = |name: String| jobs.status_of(name).map(|s| s.is_some()).map_err(fault);
        // The lock alone is left where somebody was killed between removing the one and the other.
        if !there(job.directory_name())? && !there(JobPaths::lock_name(job))? {
            return Ok(None);
        }
        let held = self.lock(&jobs, JobPaths::lock_name(job))?;
        if !there(job.directory_name())? {
            // The lock file goes too.
            jobs.remove_file(JobPaths::lock_name(job)).map_err(fault)?;
            return Ok(None);
        }
        Ok(Some(held))
    }

    fn read_journal(&mut self, job: &JobId) -> Result<Option<Journal>, Failure> {
        let Some(dir) = find(self.paths.job(job).directory())? else {
            return Ok(None);
        };
        let Some(bytes) = dir.read_limited(JOURNAL, LONGEST).map_err(fault)? else {
            return Ok(None);
        };
        Journal::parse(&String::from_utf8_lossy(&bytes))
            .map(Some)
            .map_err(|why| garbled(format!("journal of job {job}"), why))
    }

    fn write_journal(&mut self, journal: &Journal) -> Result<(), Failure> {
        let text = journal.to_text().map_err(|why| garbled("journal", why))?;
        job_dir(self, &journal.job)?
            .write_atomic(JOURNAL, text.as_bytes(), SECRET)
            .map_err(fault)
    }

    /// Writes the record. With the node its readers end too, so nobody waits for the disk.
    fn write_record(&mut self, record: &Record) -> Result<(), Failure> {
        let text = record.to_text().map_err(|why| garbled("record", why))?;
        job_dir(self, &record.job)?
            .write_whole(RECORD, text.as_bytes(), READABLE)
            .map_err(fault)
    }

    fn is_ready(&self, job: &JobId) -> bool {
        let found = record::look(&self.paths.job(job).record());
        matches!(found, Ok(Look::Found(record)) if record.state == RecordState::Ready)
    }

    fn make_directories(&mut self, journal: &Journal, n: usize) -> Result<(), Failure> {
        let dir = job_dir(self, &journal.job)?;
        let (pipe, log) = JobPaths::daemon_names(n, journal.daemons.len());
        let owner = (journal.uid, journal.gid);
        let make = |name: &str, room| room::bounded(self, &dir, &journal.job, name, (room, PRIVATE, owner));
        make(&pipe, PIPE_ROOM)
            .and_then(|()| make(&log, LOG_ROOM))
            .map_err(fault)
    }

    /// By a child that removes what is not there, as a daemon that ends removes its sockets. A lock that waits for a file system in the
    /// job's own directories is freed first.
    fn are_locked(&mut self, journal: &Journal) -> bool {
        let (path, count) = (
            self.paths.job(&journal.job).directory().to_owned(),
            journal.daemons.len(),
        );
        let touch = || {
            let _ = Dir::open(&path).map(|job| job.abort_users_mounts());
            let names = (0..count).flat_map(|n| <[String; 2]>::from(JobPaths::daemon_names(n, count)));
            for name in names {
                let _ = Dir::open(&path)
                    .and_then(|job| job.open_dir(name))
                    .and_then(|dir| dir.remove_file(NOTHING));
            }
            Vec::new()
        };
        // A job with many steps has little time for each.
        let limit = LOCKED.min(self.teardown / 4);
        matches!(ask(Deadline::after(limit), touch), Err(NoAnswer::Killed(_)))
    }

    /// Removes them, with all that the user put there: nothing is followed, nothing is waited for without a bound. By a child:
    /// a process of the user's may keep the lock of one of them, and whoever removes it then waits without regard to signals.
    fn remove_directories(&mut self, journal: &Journal, n: usize) -> Result<(), Failure> {
        let (path, bounds) = (self.paths.job(&journal.job).directory().to_owned(), self.bounds());
        let (pipe, log) = JobPaths::daemon_names(n, journal.daemons.len());
        let mut names = vec![pipe, log];
        // Root's directory with a file of the user's.
        names.extend((n == 0).then(|| PARTITIONS.to_owned()));
        let question = || {
            room::enter_first_namespace(&path)
                .and_then(|()| remove_from(&path, &names, bounds))
                .err()
                .unwrap_or_default()
                .into_bytes()
        };
        let why = match ask(
            Deadline::after(bounds.deadline.remaining() + ANSWER_TIME),
            question,
        ) {
            Ok(none) if none.is_empty() => return Ok(()),
            Ok(why) => String::from_utf8_lossy(&why).into_owned(),
            Err(none) => format!("{none}: is one of its user's processes in it?"),
        };
        // The user owns what is in there, and may still be at it.
        Err(Undetermined::new("cannot clean the user's directory", why).into())
    }

    /// Removes what is left of the job, its lock last.
    fn remove_job(&mut self, job: &JobId) -> Result<(), Failure> {
        let Some(jobs) = find(&self.paths.jobs())? else {
            return Ok(());
        };
        jobs.remove_tree(job.directory_name(), self.bounds())
            .map_err(fault)?;
        jobs.remove_file(JobPaths::lock_name(job)).map_err(fault)?;
        Ok(())
    }

    fn is_held(&self, job: &JobId) -> bool {
        let jobs = find(&self.paths.jobs()).ok().flatten();
        jobs.is_some_and(|jobs| jobs.is_locked(JobPaths::lock_name(job)))
    }

    fn cancel(&mut self, job: &JobId) -> Result<(), Failure> {
        let marked = make(&self.paths.jobs())?
            .create_dir(job.directory_name(), PASSABLE, ROOT)
            .and_then(|(dir, _)| dir.write_whole(CANCELLED, b"", SECRET));
        match marked {
            // Whoever held the job's lock was another end of it, or a start that undid itself, and has removed the
            // directory meanwhile: nothing is under way.
            Err(error) if error.is_absent() => Ok(()),
            other => other.map_err(fault),
        }
    }

    fn is_cancelled(&self, job: &JobId) -> bool {
        let mark = self.paths.job(job).directory().join(CANCELLED);
        mark.symlink_metadata().is_ok()
    }

    fn has_directory(&self, job: &JobId) -> bool {
        self.paths.job(job).directory().symlink_metadata().is_ok()
    }

    fn has_lock(&self, job: &JobId) -> bool {
        let lock = self.paths.jobs().join(JobPaths::lock_name(job));
        lock.symlink_metadata().is_ok()
    }

    fn job_directories(&self) -> Result<Vec<String>, Failure> {
        let mut names = names(&self.paths.jobs())?;
        names.retain(|name| !name.starts_with('.'));
        Ok(names)
    }

    /// Root's file, which nobody but the job's `mpsd` can write: it has a descriptor, and nobody can take it over.
    fn take_observations(&mut self, job: &JobId) -> Option<Observations> {
        let dir = find(self.paths.job(job).directory()).ok()??;
        let told = dir.read_limited(OBSERVATIONS, observations::LONGEST);
        let _ = dir.remove_file(OBSERVATIONS);
        Observations::parse(&told.ok()??)
    }

    fn killed_tasks(&self, job: &JobId) -> Vec<KilledTask> {
        let found = || {
            let dir = find(self.paths.job(job).directory()).ok()??;
            dir.read_limited(KILLED, killed::LONGEST).ok()?
        };
        killed::parse(&found().unwrap_or_default())
    }

    fn keep_report(&mut self, report: &JobReport) {
        if let Err(why) = reports::write(&self.paths, &self.reports, report, self.teardown / 4) {
            let line = format!("job {}: no report: {why}", report.job);
            log::line(self.program, Severity::Info, &line);
        }
    }

    fn enter_job(&mut self, journal: &Journal, exporter: Exporter, directory: &Path) -> Result<(), String> {
        Self::tell(self, journal, exporter, directory)
    }

    fn strike_job(
        &mut self,
        journal: &Journal,
        exporter: Exporter,
        directory: &Path,
    ) -> Result<Option<String>, Failure> {
        Self::untell(self, journal, exporter, directory)
    }

    fn count_failure(&mut self, kind: FailureKind) {
        if let Err(why) = reports::count_failure(&self.paths, &self.reports, kind, self.teardown / 4) {
            log::line(
                self.program,
                Severity::Info,
                &format!("a failed start is not counted: {why}"),
            );
        }
    }

    fn lacking(&self) -> Option<String> {
        room::lacking(self.paths.run())
    }

    fn note_failed_start(&mut self, uid: u32, job: &JobId) -> bool {
        failed_starts::note(&self.paths, uid, job, self.failed_starts_window)
    }

    fn forget_failed_starts(&mut self) {
        failed_starts::forget(&self.paths);
    }

    fn suspicions(&mut self) -> Vec<Suspicion> {
        suspicions::all(&self.paths)
    }

    fn suspect(&mut self, suspicion: &Suspicion) {
        suspicions::add(&self.paths, suspicion);
    }

    fn acquit(&mut self, suspicion: &Suspicion) {
        suspicions::remove(&self.paths, suspicion);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpsd_core::Paths;
    use mpsd_core::config::Settings;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn node(place: &Path, limit: Duration) -> RealNode {
        let settings = Settings {
            paths: Paths::new(place, place),
            ..Settings::usual()
        };
        RealNode::new("test", &settings, limit, limit / 2)
    }

    /// A prologue that is stopped holds it.
    #[test]
    fn a_lock_that_another_holds_is_not_waited_for_beyond_the_limit() {
        let place = tempfile::tempdir().unwrap();
        let limit = Duration::from_secs(1);
        let job = JobId::parse("64.srv").unwrap();
        let gpu = GpuUuid::parse("GPU-01").unwrap();
        let mut holder = node(place.path(), limit);
        let held = (holder.open_job(&job).unwrap(), holder.lock_gpu(&gpu).unwrap());
        let (tell, told) = std::sync::mpsc::channel();
        let path = place.path().to_owned();
        std::thread::spawn(move || {
            let mut late = node(&path, limit);
            let refused = [late.open_job(&job).err(), late.lock_gpu(&gpu).err()];
            tell.send(refused.map(|why| matches!(why, Some(Failure::Undetermined(_)))))
        });
        let refused = told.recv_timeout(20 * limit).expect("an answer");
        assert_eq!(refused, [true, true]);
        drop(held);
    }

    /// Without it another start would make the directory that is being removed its own.
    #[test]
    fn a_job_whose_directory_stays_keeps_its_lock() {
        let place = tempfile::tempdir().unwrap();
        let job = JobId::parse("64.srv").unwrap();
        let held = node(place.path(), Duration::from_secs(20))
            .open_job(&job)
            .unwrap();
        let mut late = node(place.path(), Duration::ZERO);
        assert!(late.remove_job(&job).is_err(), "there is no time to remove it");
        assert!(late.has_directory(&job) && late.has_lock(&job));
        drop(held);
    }

    /// Two ends of one job at once: while one leaves the mark for a start under way, the other removes the job's directory.
    #[test]
    fn a_job_whose_directory_goes_while_its_start_is_told_to_give_up_is_no_fault() {
        let place = tempfile::tempdir().unwrap();
        let settings = Settings {
            paths: Paths::new(place.path(), place.path()),
            ..Settings::usual()
        };
        let limit = Duration::from_secs(20);
        let node = || RealNode::new("test", &settings, limit, limit / 2);
        let job = JobId::parse("64.srv").unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut other = node();
                while !over.load(Ordering::Relaxed) {
                    other.remove_job(&job).expect("removed");
                }
            });
            let outcomes: Vec<_> = (0..3000).map(|_| node().cancel(&job)).collect();
            over.store(true, Ordering::Relaxed);
            assert_eq!(outcomes.into_iter().find(Result::is_err), None);
        });
    }
}
