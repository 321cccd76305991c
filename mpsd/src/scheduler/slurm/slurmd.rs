//! The node's running slurmd.

use crate::scheduler::host;
use crate::sys::process::Process;
use std::fs;
use std::path::PathBuf;

/// Where slurmd writes its pid unless slurm.conf says so.
const PID_FILES: [&str; 3] = ["/run/slurmd.pid", "/run/slurm/slurmd.pid", "/var/run/slurmd.pid"];

/// Its pid, and when it began, seconds since 1970. `named` is the value of SlurmdPidFile, `node` the node's name in Slurm.
pub(super) fn running(named: Option<&str>, node: &str) -> Option<(i32, i64)> {
    let named = named
        .map(|path| path.replace("%n", node))
        .filter(|path| !path.contains('%'))
        .map(PathBuf::from);
    let files = named.into_iter().chain(PID_FILES.map(PathBuf::from));
    files.into_iter().find_map(|file| {
        let pid: i32 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
        let stat = Process::find(pid)?.stat()?;
        (stat.name == "slurmd").then_some(())?;
        Some((pid, host::began(stat.id.start_time)?))
    })
}
