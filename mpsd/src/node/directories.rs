//! mpsd's own directories as jobs with MPS need them. What is wrong there is the site's
//! misconfiguration, because only root can have changed them.

use mpsd_core::Paths;
use mpsd_core::failure::{Evidence, Fault};
use mpsd_core::file::FileError;
use mpsd_core::trusted::check_directory;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What is so, or what is wrong and its remedy.
pub type Check = Result<String, String>;

/// Run_dir, as a job with MPS needs it.
pub fn run(paths: &Paths) -> [Check; 2] {
    [passable(&paths.jobs()), trusted(paths)]
}

/// Whether a prologue may put a job's files into run_dir: its tasks obey only what root put there.
pub fn check_run(paths: &Paths) -> Result<(), Fault> {
    let wrong = of_others(&[paths.jobs(), paths.shared()]);
    wrong.map_or(Ok(()), |error| {
        let why = error.to_string();
        Err(Fault::new(Evidence::Configuration, "run_dir", why))
    })
}

fn trusted(paths: &Paths) -> Check {
    let until = "until then no task that asked for MPS starts";
    let run = paths.run().display();
    check_run(paths)
        .map(|()| format!("only root can put files into run_dir '{run}'"))
        .map_err(|fault| format!("{fault}; {until}"))
}

/// The same for state_dir. Jobs with MPS run all the same.
pub fn state(paths: &Paths) -> Check {
    let until = "until then others than root can change drains and reports";
    match of_others(&[paths.drains(), paths.reports()]) {
        None => Ok(format!(
            "only root can put files into state_dir '{}'",
            paths.state().display()
        )),
        Some(error) => Err(format!("state_dir: {error}; {until}")),
    }
}

/// What lets others than root put files there; what cannot be looked at is told where it is used.
fn of_others(directories: &[PathBuf]) -> Option<FileError> {
    let checked = directories.iter().map(|path| check_directory(path));
    checked
        .filter_map(Result::err)
        .find(|error| matches!(error, FileError::Unfit { .. }))
}

fn passable(jobs: &Path) -> Check {
    let is_closed = |path: &&Path| other_users_may(path, 0o001) == Some(false);
    match jobs.ancestors().find(is_closed) {
        None => Ok(format!("every user can pass to '{}'", jobs.display())),
        Some(closed) => Err(format!(
            "'{0}' does not let users pass, so that no server starts and no client finds its own; chmod o+x '{0}'",
            closed.display()
        )),
    }
}

/// `None`: there is no such directory.
pub fn other_users_may(path: &Path, bit: u32) -> Option<bool> {
    let about = fs::metadata(path).ok()?;
    Some(about.permissions().mode() & bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpsd_sys::testing::STRANGER;
    use std::os::unix::fs::chown;

    #[test]
    fn a_directory_that_others_own_or_write_is_the_nodes_misconfiguration() {
        let place = tempfile::tempdir().unwrap();
        let [run, state] = ["run", "state"].map(|name| place.path().join(name));
        let paths = Paths::new(&run, &state);
        assert_eq!((check_run(&paths), state_is_good(&paths)), (Ok(()), true));
        let (jobs, shared) = (paths.jobs(), paths.shared());
        for directory in [&jobs, &shared, &paths.drains(), &paths.reports()] {
            fs::create_dir_all(directory).unwrap();
        }
        assert_eq!((check_run(&paths), state_is_good(&paths)), (Ok(()), true));
        for directory in [run, jobs, shared, state.clone()] {
            let is_run = directory != state;
            let expect = |is_good: bool, remedy: &str| {
                let told = check_run(&paths).map_err(|fault| {
                    assert!(!fault.drains(), "{fault}");
                    fault.to_string()
                });
                let good = (told.is_ok(), state_is_good(&paths));
                assert_eq!(good, (is_good || !is_run, is_good || is_run), "{told:?}");
                if let Err(told) = told {
                    let named = format!("run_dir: '{}' ", directory.display());
                    assert!(told.starts_with(&named) && told.ends_with(remedy), "{told}");
                }
            };
            let mode = |mode| fs::set_permissions(&directory, PermissionsExt::from_mode(mode));
            mode(0o775).unwrap();
            expect(false, "(mode 0775): chmod go-w");
            mode(0o711).unwrap();
            chown(&directory, Some(STRANGER), None).unwrap();
            expect(false, "belongs to user 54321, not to root: chown root");
            chown(&directory, Some(0), None).unwrap();
            expect(true, "");
        }
    }

    fn state_is_good(paths: &Paths) -> bool {
        state(paths).is_ok()
    }
}
