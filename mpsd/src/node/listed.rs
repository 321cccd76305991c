//! Directories of the site's that others may list. Whoever lists a directory can keep its lock, and who changes it then waits in the
//! kernel, without regard to signals. So they are changed by a child with a deadline. It holds a lock of ours meanwhile, in a
//! directory that nobody lists: of several children one at most waits for each directory.

use crate::sys::cgroup::Cgroup;
use crate::sys::deadline::Deadline;
use crate::sys::files::{Dir, FileError};
use crate::sys::guard::{AskError, ask};
use mpsd_core::Paths;
use mpsd_core::config::Cgroup as Rule;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time to make a cgroup, or to remove one.
const CGROUP_TIME: Duration = Duration::from_millis(500);
/// A file that nobody has there.
const NOTHING: &str = ".mpsd-nothing";
/// Longest end of a path that names a lock. Bytes.
const LONGEST: usize = 200;

/// What becomes of `work` on `directory`, done by a child within `limit`. `work` opens itself what it needs.
///
/// # Errors
/// One line: what `work` said, or that an earlier child hangs there.
pub fn change(
    paths: &Paths,
    directory: &Path,
    limit: Duration,
    work: impl FnOnce() -> Result<Vec<u8>, String>,
) -> Result<Vec<u8>, String> {
    match asked(paths, directory, limit, work).map_err(|none| none.to_string())? {
        Some(done) => done,
        None => Err(format!(
            "'{}' is still locked by another change of it",
            directory.display()
        )),
    }
}

/// Whether somebody keeps the lock of `directory`; nobody can where root alone may list it.
pub fn is_kept(paths: &Paths, directory: &Path) -> bool {
    let asked = || asked(paths, directory, CGROUP_TIME, || Ok(Vec::new()));
    may_be_listed(directory) && matches!(asked(), Ok(None) | Err(AskError::Killed(_)))
}

/// [`change`]; `None`: another child is at it.
fn asked(
    paths: &Paths,
    directory: &Path,
    limit: Duration,
    work: impl FnOnce() -> Result<Vec<u8>, String>,
) -> Result<Option<Result<Vec<u8>, String>>, AskError> {
    let alone = || {
        let run = own_directory(paths);
        let lock = lock_of(directory);
        // Where there is no room for a lock, it is done without one.
        let held = match run
            .as_ref()
            .map(|run| run.lock(&lock, Deadline::after(limit / 2)))
        {
            Some(Err(FileError::Bound { .. })) => return None,
            held => held.and_then(Result::ok),
        };
        // Takes the lock and changes nothing: a child that is killed here does nothing when it gets the lock at last.
        let _ = Dir::open(directory).and_then(|directory| directory.remove_file(NOTHING));
        let done = work();
        if let (Some(run), Some(_)) = (run, held) {
            // Whoever waits for it takes the next one.
            let _ = run.remove_file(&lock);
        }
        Some(done)
    };
    let question = || match alone() {
        Some(Ok(bytes)) => [b"+", bytes.as_slice()].concat(),
        Some(Err(why)) => format!("-{why}").into_bytes(),
        None => Vec::new(),
    };
    let answer = ask(Deadline::after(limit), question)?;
    Ok(answer.split_first().map(|(sign, rest)| match sign {
        b'+' => Ok(rest.to_vec()),
        _ => Err(String::from_utf8_lossy(rest).into_owned()),
    }))
}

/// Our directory below `/run`, made if need be: all may pass, nobody may list.
fn own_directory(paths: &Paths) -> Option<Dir> {
    let run = paths.run();
    let made = || {
        let above = Dir::open(run.parent()?).ok()?;
        above
            .create_dir(run.file_name()?, 0o711, (0, 0))
            .ok()
            .map(|(dir, _)| dir)
    };
    Dir::open(run).ok().or_else(made)
}

/// `.-run-gpustat.lock`.
fn lock_of(directory: &Path) -> String {
    let name = directory.to_string_lossy().replace('/', "-");
    let cut = name.len().saturating_sub(LONGEST);
    let end = (cut..name.len())
        .find_map(|at| name.get(at..))
        .unwrap_or_default();
    format!(".{end}.lock")
}

/// Whether others than root may list the directory at `path`.
pub fn may_be_listed(path: &Path) -> bool {
    Dir::open(path).is_ok_and(|directory| !directory.is_closed())
}

/// The directories that may have jobs' cgroups under `rule`.
fn bases(rule: &Rule) -> Vec<PathBuf> {
    match rule {
        Rule::None => Vec::new(),
        Rule::Auto => Cgroup::usual_bases(),
        Rule::Below(base) => vec![base.clone()],
    }
}

/// What a doctor that was killed left of the cgroups that it had made to see whether it can.
pub fn left_by_trials(paths: &Paths, rule: &Rule) -> Vec<Cgroup> {
    let left = |base: &PathBuf| {
        let list = || {
            let all = Cgroup::left_by_trials(base);
            let all: Vec<_> = all.iter().filter_map(|path| path.to_str()).collect();
            Ok(all.join("\n").into_bytes())
        };
        let all = change(paths, base, CGROUP_TIME, list).unwrap_or_default();
        String::from_utf8_lossy(&all).into_owned()
    };
    let bases = bases(rule).into_iter().filter(|base| base.is_dir());
    let all: Vec<String> = bases.map(|base| left(&base)).collect();
    let paths = all.iter().flat_map(|all| all.lines());
    paths
        .filter_map(|path| Cgroup::open(Path::new(path)).ok().flatten())
        .collect()
}

/// Makes the cgroup `name` where `rule` wants it; its path, or `None` where this node has no place for one.
///
/// # Errors
/// One line.
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
    // Without one of ours, it is made in a directory that others may list.
    let bases = bases(rule);
    let there = bases.iter().find(|base| base.is_dir());
    let Some(base) = there.or(bases.first()) else {
        return make();
    };
    if !may_be_listed(base) && there.is_some() {
        return make();
    }
    let path = |made: Option<PathBuf>| made.unwrap_or_default().as_os_str().as_bytes().to_vec();
    let directory = there.map(PathBuf::as_path).or(base.parent()).unwrap_or(base);
    let made = change(paths, directory, CGROUP_TIME, || make().map(path))?;
    let made = Path::new(OsStr::from_bytes(&made)).to_owned();
    Ok(Some(made).filter(|path| !path.as_os_str().is_empty()))
}

/// Removes a job's cgroup, and our own directory above it where this was the last.
///
/// # Errors
/// One line: it stays.
pub fn remove_cgroup(paths: &Paths, cgroup: &Cgroup) -> Result<(), String> {
    let remove = || cgroup.remove().map(drop).map_err(|error| error.to_string());
    let Some(base) = cgroup.path().parent() else {
        return remove();
    };
    match may_be_listed(base) {
        false => remove()?,
        true => change(paths, base, CGROUP_TIME, || remove().map(|()| Vec::new())).map(drop)?,
    }
    // Nothing depends on it: in use, it stays, and what else is left shows at the next one.
    if let Some(above) = base.parent().filter(|_| Cgroup::is_own_base(base)) {
        let remove = || {
            Cgroup::remove_base(base);
            Ok(Vec::new())
        };
        let _ = change(paths, above, CGROUP_TIME, remove);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_named_by_the_end_of_its_directory() {
        assert_eq!(lock_of(Path::new("/run/gpustat")), ".-run-gpustat.lock");
        let long = lock_of(Path::new(&format!("/{}/end", "é".repeat(200))));
        assert!(long.ends_with("-end.lock") && long.len() < 256, "{long}");
    }

    #[test]
    fn what_was_done_comes_back_and_nothing_stays() {
        let room = tempfile::tempdir().unwrap();
        let paths = Paths::new(room.path().join("run"), "/");
        let limit = Duration::from_secs(20);
        let (good, bad) = (|| Ok(b"done".to_vec()), || Err("no".to_owned()));
        assert_eq!(change(&paths, room.path(), limit, good), Ok(b"done".to_vec()));
        assert_eq!(change(&paths, room.path(), limit, bad), Err("no".to_owned()));
        assert_eq!(std::fs::read_dir(paths.run()).unwrap().count(), 0);
    }
}
