//! The job's own three processes: which they are, and what a rung of the ladder does to them.

use super::real::RealNode;
use crate::job::journal::{Journal, ProcessRef};
use crate::job::ladder::Rung;
use crate::job::node::{Member, Members, Role, Waiting};
use crate::sys::deadline::Deadline;
use crate::sys::guard::ask;
use crate::sys::priority::normalise;
use crate::sys::process::{Executable, Process, State};
use crate::sys::process::{ProcessTable, Thread};
use mpsd_core::environment::PIPE_DIRECTORY;
use nix::sys::signal::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// The vendor's server program.
const SERVER: &str = "nvidia-cuda-mps-server";
/// How often a node without a cgroup of ours is looked at while processes end.
const PAUSE: Duration = Duration::from_millis(5);
/// How often a killed process is made ordinary again while it ends.
const TURN: Duration = Duration::from_millis(100);
/// Time for one look at the threads of a process.
const LOOK_TIME: Duration = Duration::from_millis(200);
/// How much of a process's environment is read. Bytes.
const MOST_ENVIRONMENT: usize = 256 * 1024;

impl Members for RealNode {
    fn members(&mut self, journal: &Journal) -> Vec<Member> {
        members(self, journal)
    }

    fn climb(&mut self, journal: &Journal, rung: Rung, limit: Duration) -> Vec<Member> {
        let deadline = Deadline::after(limit);
        match rung {
            Rung::Polite => super::launch::ask_to_stop(self, journal, deadline),
            Rung::Terminate => signal_all(self, journal, Signal::SIGTERM),
            Rung::Kill => {
                normalise_all(self, journal);
                if let Some(cgroup) = self.cgroup_of(journal) {
                    // What it cannot kill is found below, by looking.
                    let _ = cgroup.kill(deadline);
                }
                signal_all(self, journal, Signal::SIGKILL);
            }
        }
        wait_gone(self, journal, rung == Rung::Kill, deadline)
    }

    fn threads(&mut self, process: ProcessRef) -> Option<Vec<Thread>> {
        threads(process, false)
    }

    fn waiting(&mut self) -> Option<Vec<Waiting>> {
        let table = ProcessTable::scan().ok()?;
        let users = table.iter().filter(|entry| entry.uid != 0);
        let mut all = Vec::new();
        for entry in users {
            let id = entry.stat.id;
            // Their states can be read without danger, and few wait so.
            let waits = held(id).is_some_and(|process| process.is_waiting());
            if waits {
                all.push(Waiting {
                    uid: entry.uid,
                    threads: threads(id, true)?,
                });
            }
        }
        Some(all)
    }

    fn user_is_here(&mut self, journal: &Journal) -> bool {
        user_is_here(self, journal)
    }

    fn uid_of(&mut self, pid: i32) -> Option<u32> {
        uid_of(pid)
    }

    fn is_of_job(&mut self, journal: &Journal, pid: i32) -> bool {
        is_in_jobs_cgroup(journal, pid)
    }

    fn kill_client(&mut self, pid: i32) {
        if let Ok(Some(process)) = Process::find(pid) {
            let _ = process.signal(Signal::SIGKILL);
        }
    }
}

/// The threads of a process, read by a child: reading a stack can hang.
fn threads(id: ProcessRef, waiting: bool) -> Option<Vec<Thread>> {
    let question = || {
        let threads = held(id).and_then(|process| process.threads(waiting).ok());
        serde_json::to_vec(&threads).unwrap_or_default()
    };
    let answer = ask(Deadline::after(LOOK_TIME), question).ok()?;
    serde_json::from_slice::<Option<_>>(&answer).ok()?
}

/// The job's own processes that are there, each once.
fn members(node: &RealNode, journal: &Journal) -> Vec<Member> {
    let mut found: BTreeMap<i32, Member> = BTreeMap::new();
    if let Some(process) = journal.supervisor.and_then(held) {
        enter(&mut found, &process, Role::Supervisor);
    }
    for pid in node
        .cgroup_of(journal)
        .map(|cgroup| cgroup.procs().unwrap_or_default())
        .unwrap_or_default()
    {
        if let Ok(Some(process)) = Process::find(pid) {
            let role = role_of(node, journal, &process).unwrap_or(Role::Other);
            enter(&mut found, &process, role);
        }
    }
    // Where there is no cgroup, or somebody took a process out of it: the vendor's file, the user, the pipe directory.
    let table = ProcessTable::scan().unwrap_or_default();
    for entry in table.of_user(journal.uid) {
        if found.contains_key(&entry.stat.id.pid) {
            continue;
        }
        if let Some(process) = held(entry.stat.id)
            && let Some(role) = role_of(node, journal, &process).filter(|_| is_ours(journal, &process))
        {
            enter(&mut found, &process, role);
        }
    }
    found.into_values().collect()
}

/// `pid`, if it is the job's process in that role: it runs the vendor's file, as the job's user, in the job's cgroup or
/// with its pipe directory, and has not ended.
pub fn prove(node: &RealNode, journal: &Journal, pid: i32, role: Role) -> Option<ProcessRef> {
    let process = Process::find(pid).ok().flatten()?;
    let in_group = || {
        node.cgroup_of(journal)
            .is_some_and(|cgroup| cgroup.procs().is_ok_and(|p| p.contains(&pid)))
    };
    let proved = uid_of(pid) == Some(journal.uid)
        && role_of(node, journal, &process) == Some(role)
        && (in_group() || is_ours(journal, &process));
    proved.then(|| process.id())
}

fn held(id: ProcessRef) -> Option<Process> {
    id.open().ok().flatten()
}

fn enter(found: &mut BTreeMap<i32, Member>, process: &Process, role: Role) {
    if let Ok(Some(state)) = process.state() {
        let known = found
            .get(&process.id().pid)
            .is_some_and(|m| m.role != Role::Other);
        if !known {
            found.insert(
                process.id().pid,
                Member {
                    process: process.id(),
                    role,
                    state: state.letter(),
                },
            );
        }
    }
}

/// What a process is by the file that it runs. The name it gives itself proves nothing.
fn role_of(node: &RealNode, journal: &Journal, process: &Process) -> Option<Role> {
    let runs = process.executable().ok().flatten()?;
    if is_file(&runs, &node.mpsd) {
        return Some(Role::Supervisor);
    }
    let control = journal.control.file_name()?.to_str()?;
    let grouped = || {
        node.cgroup_of(journal)
            .is_some_and(|group| group.procs().is_ok_and(|p| p.contains(&process.id().pid)))
    };
    let wrapped = |name: &str| is_roots(&runs, name) && grouped();
    if is_file(&runs, &journal.control) || wrapped(control) {
        return Some(Role::Control);
    }
    let beside = journal.control.parent().map(|directory| directory.join(SERVER));
    let server = beside.is_some_and(|path| is_file(&runs, &path)) || wrapped(SERVER);
    server.then_some(Role::Server)
}

/// Whether it runs a file of root's with the vendor's `name` that others cannot write, wherever that stands: some
/// installations have a wrapper at the usual path (seen on an H200 machine, the program itself in `/usr/local/nvidia`).
/// Believed only of a process in the job's own cgroup, which holds nothing but what we started.
fn is_roots(runs: &Executable, name: &str) -> bool {
    let text = runs.path.to_string_lossy();
    let path = Path::new(text.strip_suffix(" (deleted)").unwrap_or(&text));
    let trusted = |m: &std::fs::Metadata| m.uid() == 0 && m.mode() & 0o022 == 0 && m.is_file();
    let there = || {
        std::fs::metadata(path).is_ok_and(|m| trusted(&m) && m.dev() == runs.device && m.ino() == runs.inode)
    };
    path.file_name().is_some_and(|file| file == name) && there()
}

fn is_file(runs: &Executable, path: &Path) -> bool {
    let same = std::fs::metadata(path).is_ok_and(|m| m.dev() == runs.device && m.ino() == runs.inode);
    // A file that an upgrade replaced under a running job.
    same || runs
        .path
        .as_os_str()
        .to_str()
        .and_then(|p| p.strip_suffix(" (deleted)"))
        .is_some_and(|p| Path::new(p) == path)
}

/// Whether it talks, or listens, in one of this job's pipe directories.
fn is_ours(journal: &Journal, process: &Process) -> bool {
    let pipe = process
        .environment_variable(PIPE_DIRECTORY, MOST_ENVIRONMENT)
        .ok()
        .flatten();
    pipe.is_some_and(|pipe| {
        journal
            .daemons
            .iter()
            .any(|daemon| daemon.pipe.as_os_str() == pipe)
    })
}

fn signal_all(node: &RealNode, journal: &Journal, signal: Signal) {
    for member in members(node, journal) {
        if let Some(process) = held(member.process) {
            let _ = process.signal(signal);
        }
    }
}

/// A process that gets no turn on a CPU cannot end, and its user can take every turn from it.
fn normalise_all(node: &RealNode, journal: &Journal) {
    for member in members(node, journal) {
        if let Some(process) = held(member.process) {
            let _ = normalise(&process);
        }
    }
}

fn wait_gone(node: &RealNode, journal: &Journal, killed: bool, deadline: Deadline) -> Vec<Member> {
    loop {
        let mut left = members(node, journal);
        left.retain(|m| !m.is_defunct());
        if left.is_empty() || deadline.expired() {
            return left;
        }
        for member in &left {
            if let Some(process) = held(member.process) {
                while !process.wait_gone(deadline.within(TURN)).unwrap_or(true) && !deadline.expired() {
                    // Its user can take it back meanwhile.
                    if killed {
                        let _ = normalise(&process);
                    }
                }
            }
        }
        // A process that is waited for by descriptor has ended; one without may not have.
        deadline.sleep(PAUSE);
    }
}

/// Whether the job's user has a process here besides the job's own three and what these start: it can kill, stop or
/// starve them.
fn user_is_here(node: &RealNode, journal: &Journal) -> bool {
    // The table first: what has ended since is known by its parent.
    let Ok(table) = ProcessTable::scan() else {
        return true;
    };
    let mut own: BTreeSet<i32> = members(node, journal)
        .iter()
        .filter(|member| member.role != Role::Other)
        .map(|member| member.process.pid)
        .collect();
    let theirs: Vec<i32> = own
        .iter()
        .flat_map(|pid| table.descendants(*pid))
        .map(|entry| entry.stat.id.pid)
        .collect();
    own.extend(theirs);
    table
        .iter()
        .filter(|entry| entry.uid == journal.uid || entry.real_uid == journal.uid)
        // The first thread may have ended while another lives.
        .filter(|entry| entry.stat.state != State::Defunct || entry.stat.threads > 1)
        .any(|entry| !own.contains(&entry.stat.id.pid))
}

/// The effective user of a process that is there and has not ended.
pub fn uid_of(pid: i32) -> Option<u32> {
    let process = Process::find(pid).ok().flatten()?;
    match process.state().ok().flatten()? {
        State::Defunct | State::Dead => None,
        _ => process.uids().ok().flatten().map(|uids| uids.effective),
    }
}

/// Whether the scheduler's own cgroup of the job holds `pid`: a directory named after the job and nothing else.
/// The job's user cannot move a process into one (Slurm's and pbs_cgroups' are root's).
fn is_in_jobs_cgroup(journal: &Journal, pid: i32) -> bool {
    let Some(process) = Process::find(pid).ok().flatten() else {
        return false;
    };
    if process
        .uids()
        .ok()
        .flatten()
        .is_none_or(|uids| uids.effective != journal.uid)
    {
        return false;
    }
    let id = journal.job.as_str();
    let job = id.split('.').next().unwrap_or(id);
    let names = [format!("job_{job}"), id.to_owned(), format!("pbs_jobs.{id}")];
    process
        .cgroups()
        .ok()
        .flatten()
        .unwrap_or_default()
        .iter()
        .any(|membership| {
            Path::new(&membership.path)
                .components()
                .any(|part| names.iter().any(|name| part.as_os_str() == name.as_str()))
        })
}
