//! What root keeps on a node: the accounts of the GPUs, and for each job its directory, journal and
//! record. It knows a machine through [`Files`] alone.

use super::account::Account;
use super::journal::Journal;
use super::node::{Files, LockGuard};
use super::{failure, unless_scarce};
use mpsd_core::failure::{Evidence, Fault, Undetermined};
use mpsd_core::file::Durability;
use mpsd_core::killed::{self, KilledTask};
use mpsd_core::observations::{self, Observations};
use mpsd_core::paths::{CANCELLED, JOURNAL, JobPaths, KILLED, OBSERVATIONS};
use mpsd_core::record::{Record, RecordState};
use mpsd_core::{Failure, GpuUuid, JobId};
use mpsd_sys::deadline::Deadline;
use mpsd_sys::files::{Bounds, FileError, LOCK, TmpfsSize, lacking};
use nix::errno::Errno;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Root's directories: all users may pass through to a pipe, and none may list.
const PASSABLE: u32 = 0o711;
const SECRET: u32 = 0o600;
const READABLE: u32 = 0o644;
/// Room for the sockets, which take five entries and a page.
const PIPE_ROOM: TmpfsSize = TmpfsSize {
    bytes: 16 << 20,
    files: 4096,
};
const LOG_ROOM: TmpfsSize = TmpfsSize {
    bytes: 256 << 20,
    files: 1024,
};
pub(crate) const LONGEST: usize = 1 << 20;
/// Most entries of a user that are removed at one end.
const MOST_ENTRIES: u64 = 1_000_000;
const REMOVE_TIME: Duration = Duration::from_secs(5);
/// A directory operation slower than this means that someone keeps the directory's lock.
const KEPT: Duration = Duration::from_millis(500);

type Sharers = BTreeSet<JobId>;

/// `x` of `.x.lock`.
fn locked(name: &str) -> Option<&str> {
    name.strip_prefix('.')?.strip_suffix(".lock")
}

/// Root's own file cannot be understood, or not be written as text.
fn garbled(what: impl Into<String>, why: impl ToString) -> Failure {
    Fault::new(Evidence::Storage, what, why.to_string()).into()
}

/// Of a file that only root can write: the node's fault, unless something ran out that users share.
fn of_root(error: FileError) -> Failure {
    match &error {
        FileError::Io { act, path, errno } => {
            let lacking = (*errno == Errno::ENOSPC).then(|| lacking(path)).flatten();
            let lacking = lacking.map(|lacking| format!(": {lacking}"));
            let what = format!("cannot {act} '{}'", path.display());
            let evidence = unless_scarce(Evidence::Storage, Some(*errno));
            failure(
                evidence,
                what,
                errno.desc().to_owned() + &lacking.unwrap_or_default(),
            )
        }
        FileError::Unfit { .. } => garbled(error.to_string(), "it is not as we left it"),
        FileError::Bound { .. } => Undetermined::new("a limit of mpsd", error.to_string()).into(),
    }
}

/// A lock that another process holds is undetermined.
pub trait Store: Files {
    fn lock_in_time(&mut self, path: &Path) -> Result<LockGuard, Failure> {
        self.lock_until(path, Deadline::after(self.settings().lock_time))
    }

    fn lock_until(&mut self, path: &Path, deadline: Deadline) -> Result<LockGuard, Failure> {
        match self.lock(path, deadline) {
            Err(error @ (FileError::Bound { .. } | FileError::Io { act: LOCK, .. })) => {
                Err(Undetermined::new("lock", error.to_string()).into())
            }
            other => other.map_err(of_root),
        }
    }

    /// Makes a directory of root's with those above it, as after a boot without tmpfiles.
    fn make(&mut self, path: &Path) -> Result<(), Failure> {
        if self.is_there(path) {
            return Ok(());
        }
        let Some(parent) = path.parent() else {
            let path = path.display().to_string();
            return Err(Fault::new(Evidence::Configuration, path, "it has no parent").into());
        };
        self.make(parent)?;
        self.create_dir(path, PASSABLE).map_err(of_root)
    }

    /// Each GPU has its own: jobs on different GPUs must not wait for each other.
    fn account_lock(&self, gpu: &GpuUuid) -> PathBuf {
        self.settings().paths.gpus().join(format!(".{gpu}.lock"))
    }

    /// Removes what a killed writer of `file` may have left. The lock is ours now.
    fn forget_write(&mut self, file: &Path) -> Result<(), FileError> {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        self.remove_file(&file.with_file_name(format!(".{name}.new")))
    }

    fn lock_gpu(&mut self, gpu: &GpuUuid) -> Result<LockGuard, Failure> {
        self.make(&self.settings().paths.gpus())?;
        self.lock_in_time(&self.account_lock(gpu))
    }

    fn read_account(&mut self, gpu: &GpuUuid) -> Result<Option<Account>, Failure> {
        let file = self.settings().paths.gpu(gpu);
        self.forget_write(&file).map_err(of_root)?;
        let bytes = self.read(&file, LONGEST).map_err(of_root)?;
        let account = bytes
            .map(|bytes| serde_json::from_slice(&bytes))
            .transpose();
        account.map_err(|e| garbled(format!("account of {gpu}"), e))
    }

    /// `None` removes it with its lock, which the caller holds.
    fn write_account(&mut self, gpu: &GpuUuid, account: Option<&Account>) -> Result<(), Failure> {
        let file = self.settings().paths.gpu(gpu);
        match account {
            Some(account) => {
                let text = serde_json::to_vec_pretty(account)
                    .map_err(|e| garbled(format!("account of {gpu}"), e))?;
                self.write(&file, &text, SECRET, Durability::OnDisk)
            }
            None => self
                .remove_file(&file)
                .and_then(|()| self.remove_file(&self.account_lock(gpu))),
        }
        .map_err(of_root)
    }

    fn gpus_with_files(&mut self) -> Result<BTreeSet<GpuUuid>, Failure> {
        let names = self.names(&self.settings().paths.gpus()).map_err(of_root)?;
        let gpu = |name: &String| GpuUuid::parse(locked(name).unwrap_or(name)).ok();
        Ok(names.iter().filter_map(gpu).collect())
    }

    /// Beside the job's directory: a lock inside would vanish with it.
    fn job_lock(&self, job: &JobId) -> PathBuf {
        self.job_files(job).lock()
    }

    fn job_files(&self, job: &JobId) -> JobPaths {
        self.settings().paths.job(job)
    }

    /// Only one prologue or epilogue of a job works at a time.
    fn open_job(&mut self, job: &JobId) -> Result<LockGuard, Failure> {
        let lock = self.job_lock(job);
        self.make(lock.parent().unwrap_or(Path::new("/")))?;
        let held = self.lock_job(job)?;
        let made = self.create_dir(self.job_files(job).directory(), PASSABLE);
        if made.is_err() && !self.has_directory(job) {
            let _ = self.remove_file(&lock);
        }
        made.map(|()| held).map_err(of_root)
    }

    /// Waits longer for a shared MPS: another job of the user holds its lock while it begins.
    fn lock_job(&mut self, job: &JobId) -> Result<LockGuard, Failure> {
        let settings = self.settings();
        if job.is_shared() {
            return self.lock_shared(job, settings.ends.remaining() * 3 / 5);
        }
        self.lock_in_time(&self.job_lock(job))
    }

    /// The holder begins the MPS for another job of the same user, who can stop the holder.
    fn lock_shared(&mut self, id: &JobId, time: Duration) -> Result<LockGuard, Failure> {
        let held = self.lock_until(&self.job_lock(id), Deadline::after(time));
        held.map_err(|failure| match failure {
            Failure::Undetermined(unknown) => Undetermined {
                by_user: true,
                ..unknown
            }
            .into(),
            other => other,
        })
    }

    fn find_job(&mut self, job: &JobId) -> Result<Option<LockGuard>, Failure> {
        if !self.has_directory(job) && !self.has_lock(job) {
            return Ok(None);
        }
        let lock = self.job_lock(job);
        let held = self.lock_in_time(&lock)?;
        if self.has_directory(job) {
            return Ok(Some(held));
        }
        // Only the lock was left, by a program that was killed after it removed the directory.
        self.remove_file(&lock).map_err(of_root)?;
        Ok(None)
    }

    fn has_shared(&self, id: &JobId) -> bool {
        let is_listed = self.is_there(&self.job_files(id).sharers());
        is_listed || self.has_directory(id) || self.has_lock(id)
    }

    /// Under its lock.
    fn read_sharers(&mut self, id: &JobId) -> Result<Sharers, Failure> {
        self.forget_write(&self.job_files(id).sharers())
            .map_err(of_root)?;
        self.look_at_sharers(id)
    }

    fn look_at_sharers(&mut self, id: &JobId) -> Result<Sharers, Failure> {
        let file = self.job_files(id).sharers();
        let bytes = self.read(&file, LONGEST).map_err(of_root)?;
        let sharers = bytes
            .map(|bytes| serde_json::from_slice(&bytes))
            .transpose();
        let sharers = sharers.map_err(|e| garbled(format!("list of shared MPS {id}"), e));
        Ok(sharers?.unwrap_or_default())
    }

    fn write_sharers(&mut self, id: &JobId, sharers: &Sharers) -> Result<(), Failure> {
        let file = self.job_files(id).sharers();
        if sharers.is_empty() {
            return self.remove_file(&file).map_err(of_root);
        }
        let text = serde_json::to_vec(sharers).map_err(|e| garbled("list", e))?;
        self.write(&file, &text, READABLE, Durability::OnDisk)
            .map_err(of_root)
    }

    fn all_shared(&self) -> Result<BTreeSet<JobId>, Failure> {
        let names = self
            .names(&self.settings().paths.shared())
            .map_err(of_root)?;
        let id = |name: &String| {
            let list = || name.strip_prefix('.')?.strip_suffix(".sharers");
            let id = JobId::parse(locked(name).or_else(list).unwrap_or(name)).ok()?;
            id.is_shared().then_some(id)
        };
        Ok(names.iter().filter_map(id).collect())
    }

    fn is_held(&self, job: &JobId) -> bool {
        self.is_locked(&self.job_lock(job))
    }

    /// Tells the start under way that its job has ended. The mark lasts as long as the directory.
    fn cancel(&mut self, job: &JobId) -> Result<(), Failure> {
        self.make(&self.settings().paths.jobs())?;
        let directory = self.job_files(job).directory().to_owned();
        // Made as a lock is: two ends at once would take each other's temporary file.
        let deadline = Deadline::after(self.settings().lock_time);
        let marked = self.create_dir(&directory, PASSABLE);
        match marked.and_then(|()| self.lock(&directory.join(CANCELLED), deadline)) {
            Err(_) if self.is_cancelled(job) => Ok(()),
            // The holder of the job's lock has removed the directory: nothing is under way.
            Err(error) if error.is_absent() => Ok(()),
            other => other.map(drop).map_err(of_root),
        }
    }

    fn is_cancelled(&self, job: &JobId) -> bool {
        self.is_there(&self.job_files(job).directory().join(CANCELLED))
    }

    fn has_directory(&self, job: &JobId) -> bool {
        self.is_there(self.job_files(job).directory())
    }

    fn has_lock(&self, job: &JobId) -> bool {
        self.is_there(&self.job_lock(job))
    }

    fn job_directories(&self) -> Result<Vec<String>, Failure> {
        let mut names = self.names(&self.settings().paths.jobs()).map_err(of_root)?;
        names.retain(|name| !name.starts_with('.'));
        Ok(names)
    }

    fn job_locks(&self) -> Result<Vec<String>, Failure> {
        let names = self.names(&self.settings().paths.jobs()).map_err(of_root)?;
        let locks = names.iter().filter_map(|name| locked(name));
        let alone = locks.filter(|name| names.iter().all(|other| other != name));
        Ok(alone.map(str::to_owned).collect())
    }

    fn read_journal(&mut self, job: &JobId) -> Result<Option<Journal>, Failure> {
        let file = self.job_files(job).file(JOURNAL);
        let bytes = self.read(&file, LONGEST).map_err(of_root)?;
        let Some(bytes) = bytes else {
            return Ok(None);
        };
        let journal = Journal::parse(&String::from_utf8_lossy(&bytes)).map(Some);
        journal.map_err(|why| garbled(format!("journal of job {job}"), why))
    }

    fn write_journal(&mut self, journal: &Journal) -> Result<(), Failure> {
        let text = journal.to_text().map_err(|why| garbled("journal", why))?;
        let file = self.job_files(journal.job()).file(JOURNAL);
        self.write(&file, text.as_bytes(), SECRET, Durability::OnDisk)
            .map_err(of_root)
    }

    /// Its readers end with the node, so no caller waits for the disk.
    fn write_record(&mut self, record: &Record) -> Result<(), Failure> {
        let text = record.to_text().map_err(|why| garbled("record", why))?;
        let file = self.job_files(&record.job).record();
        self.write(&file, text.as_bytes(), READABLE, Durability::Placed)
            .map_err(of_root)
    }

    fn remove_record(&mut self, job: &JobId) -> Result<(), Failure> {
        self.remove_file(&self.job_files(job).record())
            .map_err(of_root)
    }

    fn read_record(&mut self, job: &JobId) -> Option<Record> {
        self.look_at_record(job).ok()?
    }

    /// It is a fault if there is one that cannot be read.
    fn look_at_record(&mut self, job: &JobId) -> Result<Option<Record>, Failure> {
        let bytes = self
            .read(&self.job_files(job).record(), LONGEST)
            .map_err(of_root)?;
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        Ok(text.and_then(|text| Record::parse(&text).ok()))
    }

    fn is_ready(&mut self, job: &JobId) -> bool {
        let record = self.read_record(job);
        record.is_some_and(|record| record.state == RecordState::Ready)
    }

    fn users_directories(&self, journal: &Journal, n: usize) -> [PathBuf; 2] {
        let files = self.job_files(journal.job());
        let (pipe, log) = JobPaths::daemon_names(n, journal.record().daemons.len());
        [pipe, log].map(|name| files.directory().join(name))
    }

    /// Only the user may enter them: who reaches a pipe can shut its server down
    /// (docs/facts/mps-control.md#clients).
    fn make_directories(&mut self, journal: &Journal, n: usize) -> Result<(), Failure> {
        let [pipe, log] = self.users_directories(journal, n);
        self.make_users_directory(journal, &pipe, PIPE_ROOM)
            .and_then(|()| self.make_users_directory(journal, &log, LOG_ROOM))
            .map_err(of_root)
    }

    fn has_kept_directories(&mut self, journal: &Journal) -> bool {
        let daemons = 0..journal.record().daemons.len();
        let all = daemons.flat_map(|n| self.users_directories(journal, n));
        let all: Vec<PathBuf> = all.collect();
        // A job with many steps has little time for each.
        self.are_directories_kept(&all, KEPT.min(self.settings().teardown / 4))
    }

    fn remove_directories(&mut self, journal: &Journal, n: usize) -> Result<(), Failure> {
        let paths = self.users_directories(journal, n);
        let removed = self.remove_users_directories(&paths, self.bounds());
        removed.map_err(|why| Undetermined::new("cannot clean the user's directory", why).into())
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            entries: MOST_ENTRIES,
            deadline: self.settings().ends.within(REMOVE_TIME),
        }
    }

    /// Removes what is left of the job, its lock last.
    fn remove_job(&mut self, job: &JobId) -> Result<(), Failure> {
        let (directory, lock) = (
            self.job_files(job).directory().to_owned(),
            self.job_lock(job),
        );
        self.remove_tree(&directory, self.bounds())
            .and_then(|()| self.remove_file(&lock))
            .map_err(of_root)
    }

    /// What the job's `mpsd` says that it saw: the user's word.
    fn observations(&mut self, job: &JobId) -> Option<Observations> {
        let file = self.job_files(job).file(OBSERVATIONS);
        Observations::parse(&self.read(&file, observations::LONGEST).ok()??)
    }

    /// The same, and `mpsd` cannot add to it afterwards.
    fn take_observations(&mut self, job: &JobId) -> Option<Observations> {
        let told = self.observations(job);
        let _ = self.remove_file(&self.job_files(job).file(OBSERVATIONS));
        told
    }

    /// Makes the files that tell the user of `job` what happens to the MPS that it begins to share.
    fn note_before(&mut self, job: &JobId, uid: u32, gpu: &GpuUuid) -> Result<(), FileError> {
        let placed = Durability::Placed;
        for paths in self.settings().paths.seen(job, uid, [gpu]) {
            let before = self
                .read(&paths.now, observations::LONGEST)?
                .unwrap_or_default();
            if let Some(path) = &paths.before {
                self.write(path, &before, SECRET, placed)?;
            }
            self.write(&paths.told, b"", SECRET, placed)?;
        }
        let killed = self.job_files(job).file(KILLED);
        self.write(&killed, b"", SECRET, placed)
    }

    /// What the `mpsd` of a shared MPS saw in this job's time, of all jobs that share it.
    fn shared_observations(&mut self, journal: &Journal) -> Option<Observations> {
        let (job, gpus) = (journal.job(), journal.joined_gpus());
        let paths = self.settings().paths.seen(job, journal.uid(), gpus);
        let mut read = |path: &Path| self.read(path, observations::LONGEST).ok().flatten();
        let all = paths.iter().filter_map(|paths| paths.seen(&mut read));
        all.reduce(Observations::and)
    }

    fn killed_tasks(&mut self, job: &JobId) -> Vec<KilledTask> {
        let found = self.read(&self.job_files(job).file(KILLED), killed::LONGEST);
        killed::parse(&found.ok().flatten().unwrap_or_default())
    }
}

impl<F: Files + ?Sized> Store for F {}
