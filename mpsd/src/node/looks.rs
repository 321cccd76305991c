//! What a process of a user is, by the file that it runs and the pipe directory that it talks in. Both are asked of the kernel
//! by a child with a deadline: the user can lay either behind a file system that never answers, or hold the lock of the
//! process's memory map for ever.

use super::real::RealNode;
use crate::job::journal::{FileRef, Journal, ProcessRef};
use crate::job::node::{Member, Role, Severity};
use crate::sys::deadline::Deadline;
use crate::sys::guard::ask;
use crate::sys::process::{Executable, Process, ProcessTable};
use mpsd_core::environment::PIPE_DIRECTORY;
use mpsd_core::text;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The vendor's server program.
const SERVER: &str = "nvidia-cuda-mps-server";
/// Time for one look.
const LOOK_TIME: Duration = Duration::from_millis(200);
/// Time for all looks at the processes of one job.
const ALL_LOOKS: Duration = Duration::from_secs(2);
/// How much of a process's environment is read. Bytes.
const MOST_ENVIRONMENT: usize = 256 * 1024;

/// The file at `path`, as it is now.
pub fn file(path: &Path) -> Option<FileRef> {
    std::fs::metadata(path).ok().map(|about| file_of(&about))
}

fn file_of(about: &std::fs::Metadata) -> FileRef {
    FileRef {
        device: about.dev(),
        inode: about.ino(),
    }
}

/// The server that stands beside the control daemon.
pub fn server_beside(control: &Path) -> Option<PathBuf> {
    control.parent().map(|directory| directory.join(SERVER))
}

/// The job's own three among `processes`, each with its role. Whoever hides does not keep the others from being seen.
pub fn roles(node: &RealNode, journal: &Journal, processes: &[ProcessRef]) -> Vec<(ProcessRef, Role)> {
    if processes.is_empty() {
        return Vec::new();
    }
    let look = |some: &[ProcessRef]| -> Option<Vec<_>> {
        let role = |id: &ProcessRef| Some((*id, role_of(node, journal, &id.open()?)?));
        asked(Deadline::after(LOOK_TIME), || {
            some.iter().filter_map(role).collect()
        })
    };
    if let Some(all) = look(processes) {
        return all;
    }
    let end = Deadline::after(ALL_LOOKS);
    let one_by_one = processes.iter().take_while(|_| !end.expired());
    one_by_one.filter_map(|id| look(&[*id])).flatten().collect()
}

/// Those of the three that are not among `own`: on a node without a cgroup that they cannot leave.
pub fn strangers(node: &RealNode, journal: &Journal, own: &BTreeSet<i32>) -> Vec<Member> {
    let table = ProcessTable::scan().unwrap_or_default();
    let of_user = table.of_user(journal.uid).map(|entry| entry.stat.id);
    let others: Vec<ProcessRef> = of_user.filter(|id| !own.contains(&id.pid)).collect();
    let end = Deadline::after(ALL_LOOKS);
    let (mut found, mut hidden) = (Vec::new(), Vec::new());
    for (id, role) in roles(node, journal, &others) {
        match talks_here(journal, id, end) {
            Some(true) => found.extend(id.open().and_then(|process| member(&process, role))),
            Some(false) => {}
            None => hidden.push(id.to_string()),
        }
    }
    if !hidden.is_empty() {
        let (job, user, list) = (&journal.job, text::user(&journal.user), hidden.join(", "));
        let line = format!("job {job}: whose processes {list} of {user} are cannot be seen: left alone");
        super::log::line(node.program, Severity::Info, &line);
    }
    found
}

/// Whether it talks, or listens, in one of this job's pipe directories; `None`: it does not let itself be looked at.
pub fn talks_here(journal: &Journal, id: ProcessRef, end: Deadline) -> Option<bool> {
    let question = || {
        let process = id.open();
        let pipe = process.and_then(|p| p.environment_variable(PIPE_DIRECTORY, MOST_ENVIRONMENT));
        let here = |pipe: &OsStr| {
            journal
                .daemons
                .iter()
                .any(|daemon| daemon.pipe.as_os_str() == pipe)
        };
        pipe.is_some_and(|pipe| here(&pipe))
    };
    asked(end.within(LOOK_TIME), question)
}

/// The answer to a question that is asked in a child; `None`: there is none in time.
pub fn asked<T: Serialize + DeserializeOwned>(deadline: Deadline, question: impl FnOnce() -> T) -> Option<T> {
    let text = || serde_json::to_vec(&question()).unwrap_or_default();
    serde_json::from_slice(&ask(deadline, text).ok()?).ok()
}

/// The process as it stands now; `None`: it is gone.
pub fn member(process: &Process, role: Role) -> Option<Member> {
    Some(Member {
        process: process.id(),
        role,
        state: process.state()?.letter(),
    })
}

/// What a process is by the file that it runs, where that is the one that the journal knows: no path is looked up.
pub fn role_by_journal(journal: &Journal, process: &Process) -> Option<Role> {
    let programs = journal.programs.as_ref()?;
    let runs = process.executable()?;
    let known = [
        (programs.mpsd, Role::Supervisor),
        (programs.control, Role::Control),
        (programs.server, Role::Server),
    ];
    known
        .iter()
        .find(|(file, _)| *file == Some(runs.file))
        .map(|(_, role)| *role)
}

/// The same, or by the vendor's name where some installation has a wrapper. The name a process gives itself proves nothing.
/// Looks files up: only for a child with a deadline.
pub fn role_of(node: &RealNode, journal: &Journal, process: &Process) -> Option<Role> {
    if let Some(role) = role_by_journal(journal, process) {
        return Some(role);
    }
    let runs = process.executable()?;
    let name = runs.path.file_name()?.to_str()?;
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    let role = match name {
        SERVER => Role::Server,
        name if journal.control.file_name()? == name => Role::Control,
        _ => return None,
    };
    let grouped = node.grouped(journal).contains(&process.id().pid);
    (grouped && is_roots(&runs)).then_some(role)
}

/// Whether it runs a file of root's that others cannot write, wherever that stands: some installations have a wrapper at the
/// usual path (seen on an H200 machine, the program itself in `/usr/local/nvidia`). Believed only of a process in the job's
/// own cgroup, which holds nothing but what we started.
fn is_roots(runs: &Executable) -> bool {
    let text = runs.path.to_string_lossy();
    let path = Path::new(text.strip_suffix(" (deleted)").unwrap_or(&text));
    let trusted = |m: &std::fs::Metadata| m.uid() == 0 && m.mode() & 0o022 == 0 && m.is_file();
    std::fs::metadata(path).is_ok_and(|m| trusted(&m) && file_of(&m) == runs.file)
}
