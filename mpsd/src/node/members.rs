//! The processes of a job's MPS: which they are, and what a rung of the ladder does to them.
//!
//! The file that a process runs, and the pipe directory that it talks in, tell its role. A child
//! with a deadline asks the kernel for both: the user can put either behind a file system that
//! never answers, or hold the lock of the process's memory map forever.

use super::real::{RealNode, uid_of};
use super::tasks::{MOST_ENVIRONMENT, cgroup_name, is_in_cgroup_of};
use super::{by_child, log};
use crate::job::evidence::DRIVER;
use crate::job::journal::{FileRef, Journal, ProcessRef};
use crate::job::node::{Gpus as _, Member, Members, Role, Rung, Severity, Waiting};
use mpsd_core::environment::{JOB, PIPE_DIRECTORY};
use mpsd_core::text;
use mpsd_sys::deadline::Deadline;
use mpsd_sys::priority::normalise;
use mpsd_sys::process::{Process, ProcessTable, State, Thread};
use nix::sys::signal::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SERVER: &str = "nvidia-cuda-mps-server";
/// One look at a process, and all looks at those of one job.
const LOOK_TIME: Duration = Duration::from_millis(200);
const ALL_LOOKS: Duration = Duration::from_secs(2);
/// The looks by which a start is proved.
const PROOF_TIME: Duration = Duration::from_secs(1);
const ALL_THREADS: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(5);
/// How often a killed process is made ordinary again.
const TURN: Duration = Duration::from_millis(100);
/// Most time in which a job that leaves a shared MPS ends its clients.
const TERMINATE_TIME: Duration = Duration::from_secs(2);
const OWN_END: Duration = Duration::from_secs(1);

impl Members for RealNode {
    /// The kernel takes no lock for `cgroup.procs` and `stat` that a process can keep (Linux,
    /// `kernel/cgroup/cgroup.c`, `fs/proc/array.c`).
    fn grouped(&mut self, journal: &Journal) -> Vec<i32> {
        self.in_cgroup(journal)
    }

    fn process(&mut self, pid: i32) -> Option<(ProcessRef, char)> {
        let process = Process::find(pid)?;
        Some((process.id(), process.state()?.letter()))
    }

    fn roles(&mut self, journal: &Journal, processes: &[ProcessRef]) -> Vec<(ProcessRef, Role)> {
        look_at(processes, |process| role_of(self, journal, process))
    }

    fn strays(&mut self, journal: &Journal) -> Vec<Member> {
        if self.is_contained(journal) {
            return Vec::new();
        }
        let others = self.others_of(journal.uid(), journal);
        let end = Deadline::after(ALL_LOOKS);
        let (mut found, mut hidden) = (Vec::new(), Vec::new());
        for (id, role) in self.roles(journal, &others) {
            match talks_here(journal, id, end) {
                Some(true) => {
                    let member = self.member(id.pid, role);
                    found.extend(member.filter(|member| member.process == id));
                }
                Some(false) => {}
                None => hidden.push(id.to_string()),
            }
        }
        if !hidden.is_empty() {
            let (job, user, list) = (journal.job(), text::user(&journal.user), hidden.join(", "));
            let line = format!(
                "job {job}: whose processes {list} of {user} are cannot be seen: left alone"
            );
            log::line(self.program, Severity::Info, &line);
        }
        found
    }

    fn end_each(&mut self, members: &[Member], rung: Rung, limit: Duration) {
        let deadline = Deadline::after(limit);
        let signal = match rung {
            Rung::Kill => Signal::SIGKILL,
            Rung::Polite | Rung::Terminate => Signal::SIGTERM,
        };
        signal_each(members, signal);
        for process in members.iter().filter_map(|member| member.process.open()) {
            process.wait_gone(deadline);
        }
    }

    fn climb(&mut self, journal: &Journal, rung: Rung, limit: Duration) -> Vec<Member> {
        let deadline = Deadline::after(limit);
        match rung {
            Rung::Polite => super::as_user::ask_to_stop(self, journal, deadline),
            Rung::Terminate => signal_each(&self.known_members(journal), Signal::SIGTERM),
            Rung::Kill => {
                // A user can take every turn on a CPU from a process, which then cannot end.
                let own = self.known_members(journal).into_iter();
                let own = own.filter_map(|member| member.process.open());
                own.for_each(|process| normalise(&process));
                if let Some(cgroup) = self.cgroup_of(journal) {
                    // The look below finds what it cannot kill.
                    let _ = cgroup.kill(deadline);
                }
                signal_each(&self.known_members(journal), Signal::SIGKILL);
            }
        }
        self.prepare_nvml(&journal.gpu_uuids());
        wait_gone(self, journal, rung == Rung::Kill, deadline)
    }

    /// Usually there is none, because the scheduler has ended the job's processes.
    fn end_clients(&mut self, shared: &Journal, sharer: &Journal) {
        let clients = self.processes_of(shared, sharer);
        if clients.is_empty() {
            return;
        }
        let list = clients.iter().map(i32::to_string).collect::<Vec<_>>();
        let list = list.join(",");
        // A job may share several MPS, and each may be stopped.
        let time = TERMINATE_TIME.min(self.settings.ends.remaining() / 6);
        let left = self.ask_mpsd(shared, &["--terminate", &list], time);
        if left.is_none() {
            let (job, id) = (sharer.job(), shared.job());
            let line = format!(
                "job {job}: shared MPS {id} does not say whether the job's clients have ended"
            );
            log::line(self.program, Severity::Warning, &line);
        }
    }

    /// Read by a child: reading a stack can hang.
    fn threads(&mut self, process: ProcessRef) -> Option<Vec<Thread>> {
        let threads = || process.open().and_then(|process| process.threads());
        by_child(Deadline::after(LOOK_TIME), threads).ok()?
    }

    fn waiting(&mut self) -> Option<Vec<Waiting>> {
        let all = || {
            let table = ProcessTable::scan()?;
            let users = table.iter().filter(|entry| entry.uids.effective != 0);
            // A process may have ended meanwhile.
            let threads = |process: ProcessRef| process.open()?.threads();
            Some(by_user(users.map(|entry| {
                let threads = threads(entry.stat.id);
                (entry.uids.effective, threads.unwrap_or_default())
            })))
        };
        by_child(Deadline::after(ALL_THREADS), all).ok()?
    }

    fn describe(&mut self, pid: i32) -> String {
        let executable = Process::find(pid).and_then(|process| process.executable());
        let name =
            executable.and_then(|runs| Some(runs.path.file_name()?.to_string_lossy().into_owned()));
        match (uid_of(pid), name) {
            (Some(0), Some(name)) => {
                format!("root's {} (process {pid})", text::one_line(&name, 60))
            }
            _ => format!("process {pid}"),
        }
    }

    /// Another process can kill, stop or starve the job's MPS.
    fn user_is_here(&mut self, journal: &Journal) -> bool {
        // The table comes first: a child that has ended since is still known by its parent.
        let Some(table) = ProcessTable::scan() else {
            return true;
        };
        let known = self.known_members(journal).into_iter();
        let known = known.filter(|m| m.role != Role::Other);
        let mut ours: BTreeSet<i32> = known.map(|member| member.process.pid).collect();
        let others = |ours: &BTreeSet<i32>| -> Vec<ProcessRef> {
            let theirs = ours.iter().flat_map(|pid| table.descendants(*pid));
            let theirs: BTreeSet<i32> = theirs.map(|entry| entry.stat.id.pid).collect();
            let of_user = table.iter();
            let of_user =
                of_user.filter(|one| [one.uids.effective, one.uids.real].contains(&journal.uid()));
            // The first thread may have ended while another lives.
            let lives =
                of_user.filter(|one| one.stat.state != State::Defunct || one.stat.threads > 1);
            let ids = lives.map(|one| one.stat.id);
            ids.filter(|id| !ours.contains(&id.pid) && !theirs.contains(&id.pid))
                .collect()
        };
        let unknown = others(&ours);
        if unknown.is_empty() {
            return false;
        }
        // A daemon of the job may have lost its parent.
        let grouped = self.in_cgroup(journal);
        let end = Deadline::after(PROOF_TIME);
        let is_ours = |id: ProcessRef| {
            grouped.contains(&id.pid) || talks_here(journal, id, end) == Some(true)
        };
        let known = self.roles(journal, &unknown).into_iter().map(|(id, _)| id);
        ours.extend(known.filter(|id| is_ours(*id)).map(|id| id.pid));
        !others(&ours).is_empty()
    }

    fn is_of_job(&mut self, journal: &Journal, pid: i32) -> Option<bool> {
        let process = Process::find(pid).filter(|_| uid_of(pid) == Some(journal.uid()))?;
        Some(is_in_cgroup_of(
            &process,
            journal.job(),
            journal.record().sluid.as_deref(),
        ))
    }
}

impl RealNode {
    fn others_of(&mut self, uid: u32, journal: &Journal) -> Vec<ProcessRef> {
        let known = self.known_members(journal).into_iter();
        let known: BTreeSet<i32> = known.map(|member| member.process.pid).collect();
        let table = ProcessTable::scan().unwrap_or_default();
        let of_user = table.of_user(uid).map(|entry| entry.stat.id);
        of_user.filter(|id| !known.contains(&id.pid)).collect()
    }

    /// By the scheduler's cgroup, or else by the variable that attached them. A user can forge it,
    /// but only against the user's own jobs.
    fn processes_of(&mut self, shared: &Journal, sharer: &Journal) -> Vec<i32> {
        let of_user = self.others_of(sharer.uid(), shared);
        let is_jobs = |id: &ProcessRef| self.is_of_job(sharer, id.pid) == Some(true);
        let (mut found, others): (Vec<_>, Vec<_>) = of_user.into_iter().partition(is_jobs);
        let job = OsStr::new(sharer.job().as_str());
        let named = |process: &Process| {
            let says = || process.environment_variable(JOB, MOST_ENVIRONMENT);
            let is_named = cgroup_name(process).is_none() && says().as_deref() == Some(job);
            is_named.then_some(Role::Other)
        };
        found.extend(look_at(&others, named).into_iter().map(|(id, _)| id));
        found.into_iter().map(|id| id.pid).collect()
    }
}

pub(super) fn file(path: &Path) -> Option<FileRef> {
    std::fs::metadata(path).ok().map(|about| file_of(&about))
}

fn file_of(about: &Metadata) -> FileRef {
    let (device, inode) = (about.dev(), about.ino());
    FileRef { device, inode }
}

pub(super) fn server_beside(control: &Path) -> Option<PathBuf> {
    control.parent().map(|directory| directory.join(SERVER))
}

fn look_at(
    processes: &[ProcessRef],
    role: impl Fn(&Process) -> Option<Role>,
) -> Vec<(ProcessRef, Role)> {
    if processes.is_empty() {
        return Vec::new();
    }
    let look = |some: &[ProcessRef]| -> Option<Vec<_>> {
        let role = |id: &ProcessRef| Some((*id, role(&id.open()?)?));
        by_child(Deadline::after(LOOK_TIME), || {
            some.iter().filter_map(role).collect()
        })
        .ok()
    };
    if let Some(all) = look(processes) {
        return all;
    }
    let end = Deadline::after(ALL_LOOKS);
    let one_by_one = processes.iter().take_while(|_| !end.expired());
    one_by_one.filter_map(|id| look(&[*id])).flatten().collect()
}

/// Whether it talks or listens in a pipe directory of the job's; `None`: not known in time.
fn talks_here(journal: &Journal, id: ProcessRef, end: Deadline) -> Option<bool> {
    let pipe = || {
        id.open()?
            .environment_variable(PIPE_DIRECTORY, MOST_ENVIRONMENT)
    };
    let mut daemons = journal.record().daemons.iter();
    let is_here = |pipe| daemons.any(|daemon| daemon.pipe.as_os_str() == pipe);
    by_child(end.within(LOOK_TIME), || pipe().is_some_and(is_here)).ok()
}

/// This looks up no path.
fn role_by_journal(journal: &Journal, process: &Process) -> Option<Role> {
    let programs = journal.programs.as_ref()?;
    let runs = Some(process.executable()?.file);
    match runs {
        _ if programs.mpsd == runs => Some(Role::Supervisor),
        _ if programs.control == runs => Some(Role::Control),
        _ if programs.server == runs => Some(Role::Server),
        _ => None,
    }
}

/// The same, or by the vendor's name: some installations have a wrapper at the usual path (seen on
/// an H200 machine, with the program itself in `/usr/local/nvidia`). Such a name counts only in the
/// MPS' cgroup, which holds what we started and its children. Root must own the file, and others
/// must not be able to write it. The name that a process gives itself proves nothing. This looks
/// files up, so only a child with a deadline may call it.
fn role_of(node: &RealNode, journal: &Journal, process: &Process) -> Option<Role> {
    if let Some(role) = role_by_journal(journal, process) {
        return Some(role);
    }
    let runs = process.executable()?;
    let path = runs.path.to_str()?;
    let path = Path::new(path.strip_suffix(" (deleted)").unwrap_or(path));
    let role = match path.file_name()? {
        name if name == SERVER => Role::Server,
        name if journal.control.file_name()? == name => Role::Control,
        _ => return None,
    };
    let trusted = |m: &Metadata| m.uid() == 0 && m.mode() & 0o022 == 0 && m.is_file();
    let is_roots =
        || std::fs::metadata(path).is_ok_and(|m| trusted(&m) && file_of(&m) == runs.file);
    (node.in_cgroup(journal).contains(&process.id().pid) && is_roots()).then_some(role)
}

/// Without repeats: the threads of hundreds of clients must fit into one answer.
fn by_user(processes: impl Iterator<Item = (u32, Vec<Thread>)>) -> Vec<Waiting> {
    let mut users: BTreeMap<u32, BTreeSet<(char, String)>> = BTreeMap::new();
    for (uid, threads) in processes {
        let seen = threads.into_iter();
        let seen = seen.map(|thread| (thread.state, down_to_driver(&thread.stack)));
        let waiting = seen.filter(|(state, stack)| *state == 'D' || !stack.is_empty());
        users.entry(uid).or_default().extend(waiting);
    }
    users.retain(|_, threads| !threads.is_empty());
    let thread = |(state, stack)| Thread { state, stack };
    let waiting = |(uid, threads): (u32, BTreeSet<_>)| {
        let threads = threads.into_iter().map(thread).collect();
        Waiting { uid, threads }
    };
    users.into_iter().map(waiting).collect()
}

/// The frames of `stack` down to the driver's innermost one. A verdict needs no others.
fn down_to_driver(stack: &str) -> String {
    let mut above = 0;
    for frame in stack.split_inclusive('\n') {
        above += frame.len();
        if frame.contains(DRIVER) {
            return stack.get(..above).unwrap_or(stack).to_owned();
        }
    }
    String::new()
}

/// `pid`, if it is a living process of the job's user in that role, in the job's cgroup or with its
/// pipe directory. `by_file` is what [`by_file`] found.
pub(super) fn prove(
    node: &RealNode,
    journal: &Journal,
    pid: i32,
    role: Role,
    by_file: &[(ProcessRef, Role)],
) -> Option<ProcessRef> {
    let process = Process::find(pid)?;
    let runs = || {
        role_by_journal(journal, &process) == Some(role) || by_file.contains(&(process.id(), role))
    };
    let here = || talks_here(journal, process.id(), Deadline::after(PROOF_TIME)) == Some(true);
    let in_group = || node.in_cgroup(journal).contains(&pid);
    let proved = uid_of(pid) == Some(journal.uid()) && runs() && (in_group() || here());
    proved.then(|| process.id())
}

/// The roles of those whose files the journal does not know. The usual case needs no child.
pub(super) fn by_file(
    node: &RealNode,
    journal: &Journal,
    pids: impl Iterator<Item = i32>,
) -> Vec<(ProcessRef, Role)> {
    let processes = pids.filter_map(Process::find);
    let unknown = processes.filter(|process| role_by_journal(journal, process).is_none());
    let unknown: Vec<_> = unknown.map(|process| process.id()).collect();
    look_at(&unknown, |process| role_of(node, journal, process))
}

fn signal_each(members: &[Member], signal: Signal) {
    for process in members.iter().filter_map(|member| member.process.open()) {
        process.signal(signal);
    }
}

fn wait_gone(
    node: &mut RealNode,
    journal: &Journal,
    killed: bool,
    deadline: Deadline,
) -> Vec<Member> {
    loop {
        let mut left = node.known_members(journal);
        left.retain(|m| !m.is_defunct());
        if left.is_empty() || deadline.expired() {
            return left;
        }
        let found = left.iter().filter_map(|member| member.process.open());
        let found: Vec<_> = found.collect();
        for process in &found {
            while !process.wait_gone(deadline.within(TURN)) && !deadline.expired() {
                // The user can starve it again meanwhile.
                if killed {
                    normalise(process);
                }
            }
        }
        // One without a descriptor was not waited for, and may still end.
        if found.is_empty() {
            deadline.sleep(PAUSE);
        }
    }
}

pub fn end_own(id: ProcessRef) {
    let Some(process) = id.open() else { return };
    if uid_of(id.pid) == Some(0) && process.signal(Signal::SIGKILL) {
        process.wait_gone(Deadline::after(OWN_END));
    }
}

#[cfg(test)]
#[path = "members_tests.rs"]
mod tests;
