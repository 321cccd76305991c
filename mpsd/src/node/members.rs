//! The job's own three processes: which they are, and what a rung of the ladder does to them.

use super::looks::{held, member, role_by_journal, roles, strangers, talks_here};
use super::real::RealNode;
use crate::job::journal::{Journal, ProcessRef};
use crate::job::ladder::Rung;
use crate::job::node::{Member, Members, Role, Waiting};
use crate::sys::deadline::Deadline;
use crate::sys::guard::ask;
use crate::sys::priority::normalise;
use crate::sys::process::{Process, ProcessTable, State, Thread};
use nix::sys::signal::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// How often a node without a cgroup of ours is looked at while processes end.
const PAUSE: Duration = Duration::from_millis(5);
/// How often a killed process is made ordinary again while it ends.
const TURN: Duration = Duration::from_millis(100);
/// Time for one look at the threads of a process.
const LOOK_TIME: Duration = Duration::from_millis(200);
/// Time for the looks by which a start is proved.
const PROOF_TIME: Duration = Duration::from_secs(1);
/// Time to see that a process of root's own has ended.
const OWN_END: Duration = Duration::from_secs(1);

impl Members for RealNode {
    fn own(&mut self, journal: &Journal) -> Vec<Member> {
        own(self, journal)
    }

    fn strangers(&mut self, journal: &Journal) -> Vec<Member> {
        match self.is_contained(journal) {
            true => Vec::new(),
            false => {
                let own = own(self, journal);
                strangers(self, journal, &own.iter().map(|m| m.process.pid).collect())
            }
        }
    }

    fn members(&mut self, journal: &Journal) -> Vec<Member> {
        let mut all = own(self, journal);
        name_roles(self, journal, &mut all);
        all.extend(self.strangers(journal));
        all
    }

    fn end_strangers(&mut self, members: &[Member], rung: Rung, limit: Duration) {
        let signal = match rung {
            Rung::Kill => Signal::SIGKILL,
            Rung::Polite | Rung::Terminate => Signal::SIGTERM,
        };
        let deadline = Deadline::after(limit);
        signal_each(members, signal);
        for process in members.iter().filter_map(|member| held(member.process)) {
            let _ = process.wait_gone(deadline);
        }
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

/// Those of the journal that are there, and all in the job's cgroup, each once. Only `stat` and `cgroup.procs` are read: no
/// lock that a process can keep is taken for them (Linux, `fs/proc/array.c`, `kernel/cgroup/cgroup.c`).
fn own(node: &RealNode, journal: &Journal) -> Vec<Member> {
    let mut found: BTreeMap<i32, Member> = BTreeMap::new();
    let mut enter = |process: Option<Process>, role| {
        if let Some(member) = process.and_then(|process| member(&process, role)) {
            found.entry(member.process.pid).or_insert(member);
        }
    };
    enter(journal.supervisor.and_then(held), Role::Supervisor);
    // A control daemon, its server, and so on.
    let roles = [Role::Control, Role::Server].into_iter().cycle();
    for (id, role) in journal.proved.iter().zip(roles) {
        enter(held(*id), role);
    }
    let grouped = node.cgroup_of(journal).and_then(|cgroup| cgroup.procs().ok());
    for pid in grouped.unwrap_or_default() {
        enter(Process::find(pid).ok().flatten(), Role::Other);
    }
    found.into_values().collect()
}

/// Looks at those of which only the cgroup tells.
fn name_roles(node: &RealNode, journal: &Journal, members: &mut [Member]) {
    let unknown = members.iter().filter(|m| m.role == Role::Other);
    let unknown: Vec<ProcessRef> = unknown.map(|m| m.process).collect();
    let known: BTreeMap<ProcessRef, Role> = roles(node, journal, &unknown).into_iter().collect();
    for member in members {
        if let Some(role) = known.get(&member.process) {
            member.role = *role;
        }
    }
}

/// `pid`, if it is the job's process in that role: it runs the vendor's file, as the job's user, in the job's cgroup or
/// with its pipe directory, and has not ended.
pub fn prove(node: &RealNode, journal: &Journal, pid: i32, role: Role) -> Option<ProcessRef> {
    let process = Process::find(pid).ok().flatten()?;
    let in_group = || {
        node.cgroup_of(journal)
            .is_some_and(|cgroup| cgroup.procs().is_ok_and(|p| p.contains(&pid)))
    };
    let is = |found: Option<Role>| found == Some(role);
    // The usual case needs no child.
    let runs = || {
        is(role_by_journal(journal, &process))
            || roles(node, journal, &[process.id()]) == [(process.id(), role)]
    };
    let here = || talks_here(journal, process.id(), Deadline::after(PROOF_TIME)) == Some(true);
    let proved = uid_of(pid) == Some(journal.uid) && runs() && (in_group() || here());
    proved.then(|| process.id())
}

fn signal_all(node: &RealNode, journal: &Journal, signal: Signal) {
    signal_each(&own(node, journal), signal);
}

fn signal_each(members: &[Member], signal: Signal) {
    for member in members {
        if let Some(process) = held(member.process) {
            let _ = process.signal(signal);
        }
    }
}

/// A process that gets no turn on a CPU cannot end, and its user can take every turn from it.
fn normalise_all(node: &RealNode, journal: &Journal) {
    for member in own(node, journal) {
        if let Some(process) = held(member.process) {
            let _ = normalise(&process);
        }
    }
}

fn wait_gone(node: &RealNode, journal: &Journal, killed: bool, deadline: Deadline) -> Vec<Member> {
    loop {
        let mut left = own(node, journal);
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
    let mut ours: BTreeSet<i32> = own(node, journal)
        .iter()
        .filter(|member| member.role != Role::Other)
        .map(|member| member.process.pid)
        .collect();
    let others = |ours: &BTreeSet<i32>| -> Vec<ProcessRef> {
        let theirs: BTreeSet<i32> = ours
            .iter()
            .flat_map(|pid| table.descendants(*pid))
            .map(|e| e.stat.id.pid)
            .collect();
        table
            .iter()
            .filter(|entry| entry.uid == journal.uid || entry.real_uid == journal.uid)
            // The first thread may have ended while another lives.
            .filter(|entry| entry.stat.state != State::Defunct || entry.stat.threads > 1)
            .map(|entry| entry.stat.id)
            .filter(|id| !ours.contains(&id.pid) && !theirs.contains(&id.pid))
            .collect()
    };
    let unknown = others(&ours);
    if unknown.is_empty() {
        return false;
    }
    // A daemon of ours that is nobody's child any more: looked at only where there is somebody to look at.
    let grouped = node
        .cgroup_of(journal)
        .and_then(|cgroup| cgroup.procs().ok())
        .unwrap_or_default();
    let end = Deadline::after(PROOF_TIME);
    let known = roles(node, journal, &unknown).into_iter();
    let known =
        known.filter(|(id, _)| grouped.contains(&id.pid) || talks_here(journal, *id, end) == Some(true));
    ours.extend(known.map(|(id, _)| id.pid));
    !others(&ours).is_empty()
}

/// Ends a process of root's own.
pub fn end_own(id: ProcessRef) {
    let Some(process) = held(id) else { return };
    if uid_of(id.pid) == Some(0) && process.signal(Signal::SIGKILL).is_ok() {
        let _ = process.wait_gone(Deadline::after(OWN_END));
    }
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
