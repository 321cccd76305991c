//! The site's directories that others may list, and jobs' cgroups in them.
//!
//! A process that lists a directory can keep its lock. A process that changes the directory then
//! waits in the kernel and ignores signals. So a child with a deadline makes the change, under our
//! lock, which lets only one child wait. That lock is in a directory that only root may list.

use super::by_child;
use mpsd_core::Paths;
use mpsd_core::config::Cgroup as Rule;
use mpsd_sys::cgroup::Cgroup;
use mpsd_sys::deadline::Deadline;
use mpsd_sys::files::{Dir, FileError};
use mpsd_sys::guard::AskError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;

const CGROUP_TIME: Duration = Duration::from_millis(500);
const NOTHING: &str = ".mpsd-nothing";
const LONGEST: usize = 200;

/// Does `work` on `directory` in a child, within `limit`. `work` must open what it needs.
pub fn change<T: Serialize + DeserializeOwned>(
    paths: &Paths,
    directory: &Path,
    limit: Duration,
    work: impl FnOnce() -> Result<T, String>,
) -> Result<T, String> {
    let directory_name = directory.display();
    let locked = || format!("'{directory_name}' is still locked by another change of it");
    let done = change_alone(paths, directory, limit, work).map_err(|none| none.to_string())?;
    done.ok_or_else(locked)?
}

/// Whether a process keeps the lock of `directory`. None can if only root may list it.
pub(super) fn is_kept(paths: &Paths, directory: &Path) -> bool {
    let touched = || change_alone(paths, directory, CGROUP_TIME, || Ok(()));
    may_be_listed(directory) && matches!(touched(), Ok(None) | Err(AskError::Killed(_)))
}

fn change_alone<T: Serialize + DeserializeOwned>(
    paths: &Paths,
    directory: &Path,
    limit: Duration,
    work: impl FnOnce() -> Result<T, String>,
) -> Result<Option<Result<T, String>>, AskError> {
    let alone = || {
        let run = own_directory(paths);
        let lock = lock_of(directory);
        let wait = Deadline::after(limit / 2);
        let held = run.as_ref().map(|run| run.lock(&lock, wait));
        // If there is no room for a lock, the work is done without it.
        let held = match held {
            Some(Err(FileError::Bound { .. })) => return None,
            held => held.and_then(Result::ok),
        };
        // Takes the directory's lock and changes nothing, so a child that is killed while it waits
        // does nothing later.
        let _ = Dir::open(directory).and_then(|directory| directory.remove_file(NOTHING));
        let done = work();
        if let (Some(run), Some(_)) = (run, held) {
            let _ = run.remove_file(&lock);
        }
        Some(done)
    };
    let done = by_child(Deadline::after(limit), alone);
    if matches!(done, Err(AskError::Killed(_)))
        && let Some(run) = own_directory(paths)
        // A child that still waits in the kernel holds the lock, which stays for the next change.
        && let Ok(_held) = run.lock(lock_of(directory), Deadline::after(Duration::ZERO))
    {
        let _ = run.remove_file(lock_of(directory));
    }
    done
}

fn own_directory(paths: &Paths) -> Option<Dir> {
    let run = paths.run();
    let made = || {
        let above = Dir::open(run.parent()?).ok()?;
        let made = above.create_dir(run.file_name()?, 0o711, (0, 0));
        made.ok().map(|(dir, _)| dir)
    };
    Dir::open(run).ok().or_else(made)
}

/// `.-sys-fs-cgroup.lock`.
pub(super) fn lock_of(directory: &Path) -> String {
    let name = directory.to_string_lossy().replace('/', "-");
    let cut = name.len().saturating_sub(LONGEST);
    let end = (cut..name.len()).find_map(|at| name.get(at..));
    format!(".{}.lock", end.unwrap_or_default())
}

pub fn may_be_listed(path: &Path) -> bool {
    Dir::open(path).is_ok_and(|directory| !directory.is_closed())
}

fn bases(rule: &Rule) -> Vec<PathBuf> {
    match rule {
        Rule::None => Vec::new(),
        Rule::Auto => Cgroup::usual_bases(),
        Rule::Below(base) => vec![base.clone()],
    }
}

/// The cgroups of programs of ours that were killed: a trial of 'mpsctl doctor', or that of a note.
pub fn left_behind(paths: &Paths, rule: &Rule) -> Vec<Cgroup> {
    let bases = bases(rule).into_iter().filter(|base| base.is_dir());
    let left = |base: PathBuf| change(paths, &base, CGROUP_TIME, || Ok(Cgroup::left_behind(&base)));
    let all = bases.flat_map(|base| left(base).unwrap_or_default());
    all.filter_map(|path| Cgroup::open(&path).ok().flatten())
        .collect()
}

/// `None`: this node has no place for one.
pub fn make_cgroup(paths: &Paths, rule: &Rule, name: &str) -> Result<Option<PathBuf>, String> {
    let make = || {
        let made = match rule {
            Rule::None => Ok(None),
            Rule::Auto => Cgroup::create(name),
            Rule::Below(base) => Cgroup::create_under(base, name),
        };
        let made = made.map_err(|error| error.to_string())?;
        Ok(made.map(|cgroup| cgroup.path().to_owned()))
    };
    // The first cgroup needs our own directory in one that others may list.
    let bases = bases(rule);
    let there = bases.iter().find(|base| base.is_dir());
    let Some(base) = there.or(bases.first()) else {
        return make();
    };
    if !may_be_listed(base) && there.is_some() {
        return make();
    }
    let above = base.parent().unwrap_or(base);
    let directory = there.map_or(above, PathBuf::as_path);
    change(paths, directory, CGROUP_TIME, make)
}

/// Removes a job's cgroup, and our own directory above it if that is empty then.
pub fn remove_cgroup(paths: &Paths, cgroup: &Cgroup) -> Result<(), String> {
    let remove = || cgroup.remove().map(drop).map_err(|error| error.to_string());
    let Some(base) = cgroup.path().parent() else {
        return remove();
    };
    match may_be_listed(base) {
        false => remove()?,
        true => change(paths, base, CGROUP_TIME, remove)?,
    }
    // In use, it stays, and nothing depends on that.
    let is_ours = Cgroup::usual_bases().iter().any(|own| own == base);
    if let Some(above) = base.parent().filter(|_| is_ours) {
        let _ = change(paths, above, CGROUP_TIME, || {
            Cgroup::remove_base(base);
            Ok(())
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpsd_sys::testing::alone;

    #[test]
    fn a_change_that_is_ended_at_its_limit_leaves_no_lock() {
        let _alone = alone();
        let place = tempfile::tempdir().unwrap();
        let paths = Paths::new(place.path().join("run"), place.path().join("state"));
        let slow = || {
            std::thread::sleep(Duration::from_secs(30));
            Ok(())
        };
        let limit = Duration::from_millis(100);
        change(&paths, place.path(), limit, slow).unwrap_err();
        let left = std::fs::read_dir(paths.run()).unwrap().count();
        assert_eq!(left, 0);
    }
}
