//! NVIDIA's control daemons on this node, whoever started them.

use super::by_child;
use super::tasks::{MOST_ENVIRONMENT, cgroup_name};
use mpsd_core::environment::PIPE_DIRECTORY;
use mpsd_core::script::CONTROL;
use mpsd_sys::deadline::Deadline;
use mpsd_sys::process::{ProcessId, ProcessTable};
use std::path::PathBuf;
use std::time::Duration;

/// The kernel keeps 15 characters of a process's name.
const LONGEST_NAME: usize = 15;
/// A user can make each look hang.
const LOOK_TIME: Duration = Duration::from_millis(200);
const ALL_LOOKS: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct ControlDaemon {
    pub uid: u32,
    pub pipe: Option<PathBuf>,
    /// A scheduler's cgroup has it: a job started it.
    pub is_of_job: bool,
    /// The daemon, and behind it its servers.
    pub processes: Vec<i32>,
}

/// The control daemons of the users that `of` names, by user.
pub fn control_daemons(of: impl Fn(u32) -> bool) -> Vec<ControlDaemon> {
    let table = ProcessTable::scan().unwrap_or_default();
    let is_named = |name: &std::ffi::OsStr| name == &CONTROL[..LONGEST_NAME];
    let named = table.iter().filter(|entry| is_named(&entry.stat.name));
    let mut named: Vec<_> = named.filter(|entry| of(entry.uids.effective)).collect();
    named.sort_by_key(|entry| entry.uids.effective);
    let end = Deadline::after(ALL_LOOKS);
    let found = named.into_iter().filter_map(|entry| {
        let id = entry.stat.id;
        let limit = Deadline::after(LOOK_TIME.min(end.remaining()));
        let (is_of_job, pipe) = by_child(limit, || look(id)).ok()??;
        let servers = table.children(id.pid).map(|server| server.stat.id.pid);
        Some(ControlDaemon {
            uid: entry.uids.effective,
            pipe,
            is_of_job,
            processes: [id.pid].into_iter().chain(servers).collect(),
        })
    });
    found.collect()
}

/// `None`: it is no control daemon.
fn look(id: ProcessId) -> Option<(bool, Option<PathBuf>)> {
    let process = id.open()?;
    let runs = process.executable()?.path;
    let pipe = || process.environment_variable(PIPE_DIRECTORY, MOST_ENVIRONMENT);
    let is_of_job = || cgroup_name(&process).is_some();
    (runs.file_name()? == CONTROL).then(|| (is_of_job(), pipe().map(PathBuf::from)))
}

/// A job whose MPS began under a run_dir that the configuration no longer names. Its epilogue does
/// not find it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
#[display("{job} (below '{}', an earlier run_dir: 'mpsctl reconcile' takes its MPS down after it)", run.display())]
pub struct MovedJob {
    /// The job, or the shared MPS.
    pub job: JobId,
    pub run: PathBuf,
}

/// Those that began under this configuration. Several nodes may run on one host, each with a
/// run_dir of its own.
pub fn moved_jobs(config: &Path) -> BTreeSet<MovedJob> {
    let pipes = control_daemons(|_| true).into_iter();
    let pipes = pipes.filter_map(|daemon| daemon.pipe);
    pipes.filter_map(|pipe| moved_job(&pipe, config)).collect()
}

/// `pipe` is the daemon's word, so its user may spell a directory of today in another way. The
/// journal beside it is root's.
fn moved_job(pipe: &Path, config: &Path) -> Option<MovedJob> {
    let directory = pipe.parent()?;
    let run = directory.parent()?.parent()?;
    let journal = open_trusted(&directory.join(JOURNAL)).and_then(|file| file.read(LONGEST));
    let journal = Journal::parse(&String::from_utf8_lossy(&journal.ok()?)).ok()?;
    let now = directories_alone(config, &journal.node).paths;
    let is_ours = journal.config.as_deref() == Some(config);
    (is_ours && is_moved(journal.job(), directory, &now)).then(|| MovedJob {
        job: journal.job().clone(),
        run: run.to_owned(),
    })
}

fn is_moved(job: &JobId, directory: &Path, now: &Paths) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let own = identity(now.job(job).directory()).ok();
    identity(directory).is_ok_and(|then| own != Some(then))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::testing;

    #[test]
    fn a_job_is_moved_if_its_configuration_names_another_run_dir_for_its_node() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let configure = |file: &str, run: &str| {
            let run = at(run).display().to_string();
            std::fs::write(at(file), format!("run_dir = \"{run}\"\n")).unwrap();
        };
        let mut journal = testing::journal();
        let node = journal.node.clone();
        let directory = at(&format!("{node}/old/jobs/10.srv"));
        std::fs::create_dir_all(&directory).unwrap();
        let pipe = directory.join("pipe");
        configure("mpsd.toml", "%n/new");
        configure("other.toml", "new");
        let moved = |config: &str| moved_job(&pipe, &at(config)).map(|moved| moved.run);
        assert_eq!(moved("mpsd.toml"), None, "no journal");
        let mut write = |config: Option<&str>| {
            journal.config = config.map(at);
            std::fs::write(directory.join(JOURNAL), journal.to_text().unwrap()).unwrap();
        };
        write(None);
        assert_eq!(moved("mpsd.toml"), None, "of an older release");
        write(Some("mpsd.toml"));
        assert_eq!(moved("mpsd.toml"), Some(at(&format!("{node}/old"))));
        assert_eq!(moved("other.toml"), None, "another node of this host");
        configure("mpsd.toml", "%n/old");
        assert_eq!(moved("mpsd.toml"), None);
        let spelled = at(&format!("{node}/../{node}/old/jobs/10.srv/pipe"));
        // No user drains.
        assert_eq!(moved_job(&spelled, &at("mpsd.toml")), None);
        std::fs::write(at("mpsd.toml"), "run_dir = \n").unwrap();
        // As its end sees it.
        assert_eq!(moved("mpsd.toml"), Some(at(&format!("{node}/old"))));
        std::os::unix::fs::chown(&directory, Some(1), None).unwrap();
        assert_eq!(moved("mpsd.toml"), None, "not root's");
    }
}
