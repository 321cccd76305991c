//! All control daemons of NVIDIA's on this node: ours and others.

use super::by_child;
use super::tasks::{MOST_ENVIRONMENT, cgroup_name};
use mpsd_core::environment::PIPE_DIRECTORY;
use mpsd_core::script::CONTROL;
use mpsd_sys::deadline::Deadline;
use mpsd_sys::process::{ProcessId, ProcessTable};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The kernel keeps 15 characters of a process's name.
pub const LONGEST_NAME: usize = 15;
/// A user can make each look hang.
const LOOK_TIME: Duration = Duration::from_millis(200);
const ALL_LOOKS: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct ControlDaemon {
    pub uid: u32,
    pub pipe: Option<PathBuf>,
    /// By its scheduler's cgroup.
    pub is_of_job: bool,
    /// Itself, and behind it its servers.
    pub processes: Vec<i32>,
}

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
    let runs = Path::new(runs.to_str()?.trim_end_matches(" (deleted)"));
    let pipe = || process.environment_variable(PIPE_DIRECTORY, MOST_ENVIRONMENT);
    let is_of_job = || cgroup_name(&process).is_some();
    (runs.file_name()? == CONTROL).then(|| (is_of_job(), pipe().map(PathBuf::from)))
}
