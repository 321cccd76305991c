//! The sim's files. Each change has its smallest steps, with a point after each.

use super::{SharedWorld, Sim};
use mpsd::job::journal::Journal;
use mpsd::job::node::{Bounds, FileError, Files, LockGuard, NodeSettings, Role, TmpfsSize};
use mpsd::job::report::JobOutcome;
use mpsd_core::file::Durability;
use mpsd_core::record::{Record, RecordState};
use mpsd_core::{JobId, Paths};
use mpsd_sys::deadline::Deadline;
use nix::errno::Errno;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// What lies at a path: a file with its bytes, or a directory.
pub type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

pub fn paths() -> Paths {
    Paths::new("/run/mpsd", "/var/lib/mpsd")
}

/// A lock of the sim. A worker that took it twice would wait for itself.
struct Lock {
    path: PathBuf,
    world: SharedWorld,
    own: Rc<RefCell<BTreeSet<PathBuf>>>,
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.own.borrow_mut().remove(&self.path);
        self.world.borrow_mut().held.remove(&self.path);
    }
}

/// Failures on these files are not reported: no job fails for them.
fn may_be_lost(path: &Path) -> bool {
    let lost = ["observations", "killed"].map(OsStr::new);
    path.parent() == Some(paths().run())
        || path.file_name().is_some_and(|name| lost.contains(&name))
}

fn hidden(path: &Path) -> PathBuf {
    let name = path.file_name().expect("a name").to_string_lossy();
    path.with_file_name(format!(".{name}.new"))
}

impl Sim {
    /// Begins a call on the file at `path`; its directory must exist.
    fn file_call(&mut self, path: &Path) -> Result<(), FileError> {
        self.point();
        self.asked.set(false);
        let errno = match may_be_lost(path) {
            true => None,
            false => self.trouble_of_call(),
        };
        if let Some(is_fault) = errno {
            let errno = if is_fault { Errno::EIO } else { Errno::ENOSPC };
            return Err(FileError::io("injected: use", path)(errno));
        }
        let parent = path.parent().expect("a parent");
        match self.world.borrow().files.get(parent) {
            Some(None) => Ok(()),
            _ => Err(FileError::io("open", path)(Errno::ENOENT)),
        }
    }

    /// An account is read and changed only under its lock.
    fn assert_locked(&self, path: &Path) {
        let name = path.file_name().expect("a name").to_string_lossy();
        let lock = path.with_file_name(format!(".{name}.lock"));
        let is_account = path.parent() == Some(&paths().gpus()) && !name.starts_with('.');
        let is_held = self.world.borrow().held.contains(&lock);
        assert!(!is_account || is_held, "{name}: without its lock");
    }

    /// Tasks believe this record, so root must have proved the daemons.
    fn check_record(&self, bytes: &[u8], was_asked: bool) {
        let record = Record::parse(std::str::from_utf8(bytes).expect("text")).expect("a record");
        if record.state != RecordState::Ready {
            // What was proved of an earlier start no longer counts.
            self.world.borrow_mut().proved.remove(&record.job);
            return;
        }
        let (world, job) = (self.world.borrow(), &record.job);
        assert!(was_asked, "ready, and not asked whether the job has ended");
        let gpus = record.gpus.iter();
        let all: Vec<JobId> = match record.shared {
            true => gpus
                .map(|gpu| JobId::shared(record.uid, &gpu.uuid))
                .collect(),
            false => vec![job.clone()],
        };
        for id in all {
            let proved = world.proved.contains(&id);
            let runs = world.has_process(&id, |p| p.role == Role::Control);
            assert!(proved && runs, "job {job} is called ready, {id} is not");
        }
    }
}

impl Files for Sim {
    fn settings(&self) -> &NodeSettings {
        &self.settings
    }

    /// Another worker continues only after this one has ended, so nobody waits for its lock.
    fn lock(&mut self, path: &Path, _: Deadline) -> Result<LockGuard, FileError> {
        self.file_call(path)?;
        let new = self.locks.borrow_mut().insert(path.to_owned());
        assert!(new, "lock '{}' is taken twice", path.display());
        if !self.world.borrow_mut().held.insert(path.to_owned()) {
            self.locks.borrow_mut().remove(path);
            let what = "is still locked by another process".to_owned();
            let path = path.to_owned();
            return Err(FileError::Bound { path, what });
        }
        let lock = Lock {
            path: path.to_owned(),
            world: Rc::clone(&self.world),
            own: Rc::clone(&self.locks),
        };
        self.step(|world| world.files.insert(path.to_owned(), Some(Vec::new())));
        Ok(Box::new(lock))
    }

    fn is_locked(&self, path: &Path) -> bool {
        self.world.borrow().held.contains(path) && !self.locks.borrow().contains(path)
    }

    fn is_there(&self, path: &Path) -> bool {
        self.asked.set(path.ends_with("cancelled"));
        self.world.borrow().files.contains_key(path)
    }

    fn read(&mut self, path: &Path, _: usize) -> Result<Option<Vec<u8>>, FileError> {
        match self.file_call(path) {
            Err(error) if error.is_absent() => return Ok(None),
            other => other?,
        }
        self.assert_locked(path);
        Ok(self.world.borrow().files.get(path).cloned().flatten())
    }

    fn write(&mut self, path: &Path, bytes: &[u8], _: u32, _: Durability) -> Result<(), FileError> {
        let asked = self.asked.get();
        self.file_call(path)?;
        self.assert_locked(path);
        if path.ends_with("record") {
            if self.world.borrow().no_room {
                return Err(FileError::io("write", path)(Errno::ENOSPC));
            }
            self.check_record(bytes, asked);
        }
        self.step(|world| world.files.insert(hidden(path), Some(Vec::new())));
        self.step(|world| {
            world.files.remove(&hidden(path));
            world.put(path.to_owned(), bytes);
        });
        Ok(())
    }

    fn remove_file(&mut self, path: &Path) -> Result<(), FileError> {
        match self.file_call(path) {
            Err(error) if error.is_absent() => return Ok(()),
            other => other?,
        }
        self.assert_locked(path);
        self.step(|world| world.files.remove(path));
        Ok(())
    }

    fn create_dir(&mut self, path: &Path, _: u32) -> Result<(), FileError> {
        self.file_call(path)?;
        let was = self.step(|world| world.files.insert(path.to_owned(), None));
        assert!(was.flatten().is_none(), "a file at '{}'", path.display());
        Ok(())
    }

    fn names(&self, path: &Path) -> Result<Vec<String>, FileError> {
        let world = self.world.borrow();
        let files = world.files.keys();
        let below = files.filter(|entry| entry.parent() == Some(path));
        let names = below.filter_map(|entry| entry.file_name());
        let names = names.map(|name| name.to_string_lossy().into_owned());
        Ok(names.collect())
    }

    /// Entry by entry, in the worst of the directory's possible orders: the journal first.
    fn remove_tree(&mut self, path: &Path, _: Bounds) -> Result<(), FileError> {
        self.file_call(path)?;
        let mut all: Vec<PathBuf> = self.world.borrow().files.keys().cloned().collect();
        all.retain(|entry| entry.starts_with(path));
        all.reverse();
        all.sort_by_key(|entry| !entry.ends_with("journal"));
        for entry in all {
            self.step(|world| world.files.remove(&entry));
        }
        Ok(())
    }

    fn make_users_directory(
        &mut self,
        _: &Journal,
        path: &Path,
        _: TmpfsSize,
    ) -> Result<(), FileError> {
        self.file_call(path)?;
        self.step(|world| world.files.insert(path.to_owned(), None));
        Ok(())
    }

    fn remove_users_directories(&mut self, paths: &[PathBuf], _: Bounds) -> Result<(), String> {
        for path in paths {
            self.file_call(path).map_err(|error| error.to_string())?;
            self.step(|world| world.files.remove(path));
        }
        Ok(())
    }

    fn are_directories_kept(&mut self, _: &[PathBuf], _: Duration) -> bool {
        false
    }

    fn lacking(&self, _: &Path) -> Option<String> {
        None
    }

    fn keep(&mut self, outcome: JobOutcome<'_>) {
        match outcome {
            JobOutcome::Ended(report) => self.step(|world| world.reports.push(report.clone())),
            JobOutcome::NotStarted(report) => self.world.borrow_mut().reports.push(report.clone()),
            JobOutcome::Failed(kind) => self.world.borrow_mut().failed.push(kind),
            JobOutcome::Drained => self.world.borrow_mut().drained += 1,
        }
    }
}
