//! The job's own three processes: which they are, and what a rung of the ladder does to them.

use super::looks::{asked, member, role_by_journal, roles, strangers, talks_here};
use super::real::RealNode;
use crate::job::evidence::DRIVER;
use crate::job::journal::{Journal, ProcessRef};
use crate::job::node::{Gpus as _, Member, Members, Role, Rung, Waiting};
use crate::sys::deadline::Deadline;
use crate::sys::priority::normalise;
use crate::sys::process::{Process, ProcessTable, State, Thread};
use nix::sys::signal::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Component;
use std::time::Duration;

/// How often a node without a cgroup of ours is looked at while processes end.
const PAUSE: Duration = Duration::from_millis(5);
/// How often a killed process is made ordinary again while it ends.
const TURN: Duration = Duration::from_millis(100);
/// Time for one look at the threads of a process.
const LOOK_TIME: Duration = Duration::from_millis(200);
/// Time for the looks by which a start is proved.
const PROOF_TIME: Duration = Duration::from_secs(1);
/// Time to look at the threads of all users' processes: once for a verdict.
const ALL_TIME: Duration = Duration::from_secs(3);
/// Time to see that a process of root's own has ended.
const OWN_END: Duration = Duration::from_secs(1);

impl Members for RealNode {
    /// Only `stat` and `cgroup.procs` are read: no lock that a process can keep is taken for them (Linux, `fs/proc/array.c`,
    /// `kernel/cgroup/cgroup.c`).
    fn own(&mut self, journal: &Journal) -> Vec<Member> {
        let mut found: BTreeMap<i32, Member> = BTreeMap::new();
        let mut enter = |process: Option<Process>, role| {
            if let Some(member) = process.and_then(|process| member(&process, role)) {
                found.entry(member.process.pid).or_insert(member);
            }
        };
        enter(journal.supervisor.and_then(ProcessRef::open), Role::Supervisor);
        // A control daemon, its server, and so on.
        let roles = [Role::Control, Role::Server].into_iter().cycle();
        for (id, role) in journal.proved.iter().zip(roles) {
            enter(id.open(), role);
        }
        for pid in self.grouped(journal) {
            enter(Process::find(pid), Role::Other);
        }
        found.into_values().collect()
    }

    fn strangers(&mut self, journal: &Journal) -> Vec<Member> {
        match self.is_contained(journal) {
            true => Vec::new(),
            false => {
                let own = self.own(journal);
                strangers(self, journal, &own.iter().map(|m| m.process.pid).collect())
            }
        }
    }

    fn members(&mut self, journal: &Journal) -> Vec<Member> {
        let mut all = self.own(journal);
        // Looked at are those of which only the cgroup tells.
        let unknown = all.iter().filter(|m| m.role == Role::Other);
        let unknown: Vec<ProcessRef> = unknown.map(|m| m.process).collect();
        let known: BTreeMap<ProcessRef, Role> = roles(self, journal, &unknown).into_iter().collect();
        for member in &mut all {
            member.role = known.get(&member.process).copied().unwrap_or(member.role);
        }
        all.extend(self.strangers(journal));
        all
    }

    fn end_strangers(&mut self, members: &[Member], rung: Rung, limit: Duration) {
        let deadline = Deadline::after(limit);
        signal_each(
            members,
            if rung == Rung::Kill {
                Signal::SIGKILL
            } else {
                Signal::SIGTERM
            },
        );
        for process in members.iter().filter_map(|member| member.process.open()) {
            process.wait_gone(deadline);
        }
    }

    fn climb(&mut self, journal: &Journal, rung: Rung, limit: Duration) -> Vec<Member> {
        let deadline = Deadline::after(limit);
        match rung {
            Rung::Polite => super::launch::ask_to_stop(self, journal, deadline),
            Rung::Terminate => signal_each(&self.own(journal), Signal::SIGTERM),
            Rung::Kill => {
                // A process that gets no turn on a CPU cannot end, and its user can take every turn from it.
                let own = self.own(journal);
                own.iter()
                    .filter_map(|member| member.process.open())
                    .for_each(|process| normalise(&process));
                if let Some(cgroup) = self.cgroup_of(journal) {
                    // What it cannot kill is found below, by looking.
                    let _ = cgroup.kill(deadline);
                }
                signal_each(&self.own(journal), Signal::SIGKILL);
            }
        }
        self.prepare_nvml(&journal.gpu_uuids());
        wait_gone(self, journal, rung == Rung::Kill, deadline)
    }

    fn threads(&mut self, process: ProcessRef) -> Option<Vec<Thread>> {
        threads(process)
    }

    fn waiting(&mut self) -> Option<Vec<Waiting>> {
        asked(Deadline::after(ALL_TIME), all_waiting)?
    }

    /// Whoever has a process here besides the job's own three and what these start can kill, stop or starve them.
    fn user_is_here(&mut self, journal: &Journal) -> bool {
        // The table first: what has ended since is known by its parent.
        let Some(table) = ProcessTable::scan() else {
            return true;
        };
        let known = self.own(journal).into_iter().filter(|m| m.role != Role::Other);
        let mut ours: BTreeSet<i32> = known.map(|member| member.process.pid).collect();
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
        let grouped = self.grouped(journal);
        let end = Deadline::after(PROOF_TIME);
        let is_ours =
            |id: ProcessRef| grouped.contains(&id.pid) || talks_here(journal, id, end) == Some(true);
        let known = roles(self, journal, &unknown)
            .into_iter()
            .filter(|(id, _)| is_ours(*id));
        ours.extend(known.map(|(id, _)| id.pid));
        !others(&ours).is_empty()
    }

    fn uid_of(&mut self, pid: i32) -> Option<u32> {
        uid_of(pid)
    }

    /// By the scheduler's own cgroup of the job: a directory named after the job and nothing else.
    /// The job's user cannot move a process into one (Slurm's and pbs_cgroups' are root's).
    fn is_of_job(&mut self, journal: &Journal, pid: i32) -> bool {
        let Some(process) = Process::find(pid) else {
            return false;
        };
        if process.uids().is_none_or(|uids| uids.effective != journal.uid) {
            return false;
        }
        let id = journal.job.as_str();
        let job = id.split('.').next().unwrap_or(id);
        let names = [format!("job_{job}"), id.to_owned(), format!("pbs_jobs.{id}")];
        let is_jobs = |part: Component| names.iter().any(|name| part.as_os_str() == name.as_str());
        let cgroups = process.cgroups().unwrap_or_default();
        cgroups
            .iter()
            .any(|membership| membership.path.components().any(is_jobs))
    }

    fn kill_client(&mut self, pid: i32) {
        if let Some(process) = Process::find(pid) {
            process.signal(Signal::SIGKILL);
        }
    }
}

/// The threads of a process, read by a child: reading a stack can hang.
fn threads(id: ProcessRef) -> Option<Vec<Thread>> {
    let question = || id.open().and_then(|process| process.threads());
    asked(Deadline::after(LOOK_TIME), question)?
}

/// The users' threads in state D, or in a call of the driver's; none where the kernel tells no stacks.
fn all_waiting() -> Option<Vec<Waiting>> {
    let table = ProcessTable::scan()?;
    let users = table.iter().filter(|entry| entry.uid != 0);
    // It may have ended meanwhile.
    let threads = |process: ProcessRef| process.open().and_then(|one| one.threads()).unwrap_or_default();
    Some(by_user(users.map(|entry| (entry.uid, threads(entry.stat.id)))))
}

/// The waiting threads of each user, alike ones once: hundreds of a job's clients wait at the same place, and all that is found
/// must fit into one answer (`guard::ask`).
fn by_user(processes: impl Iterator<Item = (u32, Vec<Thread>)>) -> Vec<Waiting> {
    let mut users: BTreeMap<u32, BTreeSet<(char, String)>> = BTreeMap::new();
    for (uid, threads) in processes {
        let waiting = threads
            .into_iter()
            .map(|thread| (thread.state, down_to_driver(&thread.stack)))
            .filter(|(state, stack)| *state == 'D' || !stack.is_empty());
        users.entry(uid).or_default().extend(waiting);
    }
    let thread = |(state, stack)| Thread { state, stack };
    users
        .into_iter()
        .filter(|(_, threads)| !threads.is_empty())
        .map(|(uid, threads)| Waiting {
            uid,
            threads: threads.into_iter().map(thread).collect(),
        })
        .collect()
}

/// The frames of `stack` down to the driver's innermost one, which are all that a verdict looks at; empty where there is none.
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

/// `pid`, if it is the job's process in that role: it runs the vendor's file, as the job's user, in the job's cgroup or
/// with its pipe directory, and has not ended.
///
/// `by_file`: what was found of it by its file, where the journal does not know that ([`by_file`]).
pub fn prove(
    node: &RealNode,
    journal: &Journal,
    pid: i32,
    role: Role,
    by_file: &[(ProcessRef, Role)],
) -> Option<ProcessRef> {
    let process = Process::find(pid)?;
    let runs = || role_by_journal(journal, &process) == Some(role) || by_file.contains(&(process.id(), role));
    let here = || talks_here(journal, process.id(), Deadline::after(PROOF_TIME)) == Some(true);
    let in_group = || node.grouped(journal).contains(&pid);
    let proved = uid_of(pid) == Some(journal.uid) && runs() && (in_group() || here());
    proved.then(|| process.id())
}

/// What those of `pids` are whose files the journal does not know, as where a wrapper stands at the usual path. The usual case needs
/// no child, and this one a single child.
pub fn by_file(node: &RealNode, journal: &Journal, pids: &[i32]) -> Vec<(ProcessRef, Role)> {
    let processes = pids.iter().filter_map(|pid| Process::find(*pid));
    let unknown: Vec<ProcessRef> = processes
        .filter(|process| role_by_journal(journal, process).is_none())
        .map(|process| process.id())
        .collect();
    roles(node, journal, &unknown)
}

fn signal_each(members: &[Member], signal: Signal) {
    for process in members.iter().filter_map(|member| member.process.open()) {
        process.signal(signal);
    }
}

fn wait_gone(node: &mut RealNode, journal: &Journal, killed: bool, deadline: Deadline) -> Vec<Member> {
    loop {
        let mut left = node.own(journal);
        left.retain(|m| !m.is_defunct());
        if left.is_empty() || deadline.expired() {
            return left;
        }
        let found: Vec<_> = left.iter().filter_map(|member| member.process.open()).collect();
        for process in &found {
            while !process.wait_gone(deadline.within(TURN)) && !deadline.expired() {
                // Its user can take it back meanwhile.
                if killed {
                    normalise(process);
                }
            }
        }
        // Who was waited for by descriptor has ended, and who ended meanwhile is not listed again; one without may not have.
        if found.is_empty() {
            deadline.sleep(PAUSE);
        }
    }
}

/// Ends a process of root's own.
pub fn end_own(id: ProcessRef) {
    let Some(process) = id.open() else { return };
    if uid_of(id.pid) == Some(0) && process.signal(Signal::SIGKILL) {
        process.wait_gone(Deadline::after(OWN_END));
    }
}

/// The effective user of a process that is there and has not ended.
pub fn uid_of(pid: i32) -> Option<u32> {
    let process = Process::find(pid)?;
    match process.state()? {
        State::Defunct | State::Dead => None,
        _ => process.uids().map(|uids| uids.effective),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::journal::Programs;
    use crate::node::looks;
    use crate::sys::cgroup::Cgroup;
    use crate::sys::spawn::{Identity, Spawn};
    use mpsd_core::config::Settings;
    use mpsd_core::environment::PIPE_DIRECTORY;
    use std::path::Path;

    /// A user that owns nothing on any system.
    const STRANGER: u32 = 54_321;

    /// What `mpsd` names is its user's word: a process of that user which talks elsewhere, or a stranger's, is not believed.
    #[test]
    fn only_a_process_of_the_jobs_user_in_the_jobs_directory_is_proved_to_be_its_server() {
        let recorded = include_str!("../job/recorded/journal-1.json");
        let mut journal: Journal = serde_json::from_str(recorded).unwrap();
        (journal.cgroup, journal.uid) = (None, STRANGER);
        journal.programs = Some(Programs {
            server: looks::file(Path::new("/bin/sleep")),
            ..Programs::default()
        });
        let limit = Duration::from_secs(1);
        let node = RealNode::new("test", &Settings::usual(), limit, limit);
        let is_proved = |uid: u32, pipe: &Path, role| {
            let mut sleeper = Spawn::new(Path::new("/bin/sleep"));
            sleeper.args = vec!["60".into()];
            sleeper.env = vec![(PIPE_DIRECTORY.into(), pipe.into())];
            sleeper.identity = Some(Identity {
                uid,
                gid: STRANGER,
                groups: Vec::new(),
            });
            let mut sleeper = sleeper.start(Deadline::after_ms(20_000)).unwrap();
            let proved = prove(&node, &journal, sleeper.pid(), role, &[]);
            sleeper.kill(Deadline::after_ms(20_000));
            proved.is_some()
        };
        let own = journal.daemons[0].pipe.clone();
        assert!(is_proved(STRANGER, &own, Role::Server));
        assert!(!is_proved(STRANGER, Path::new("/tmp"), Role::Server), "of no job");
        assert!(!is_proved(STRANGER + 1, &own, Role::Server), "a stranger's");
        assert!(!is_proved(STRANGER, &own, Role::Control), "another file");
    }

    /// Of a server that NVIDIA's daemon has started again, the journal knows nothing.
    #[test]
    fn a_process_that_only_the_jobs_cgroup_knows_is_one_of_the_jobs_own() {
        let cgroup = Cgroup::create(&Cgroup::trial()).unwrap();
        let cgroup = cgroup.expect("this machine has no cgroup hierarchy to test with");
        let recorded = include_str!("../job/recorded/journal-1.json");
        let mut journal: Journal = serde_json::from_str(recorded).unwrap();
        (journal.cgroup, journal.supervisor) = (Some(cgroup.path().to_owned()), None);
        let limit = Duration::from_secs(1);
        let mut node = RealNode::new("test", &Settings::usual(), limit, limit);
        let mut sleeper = Spawn::new(Path::new("/bin/sleep"));
        sleeper.args = vec!["60".into()];
        sleeper.cgroup = Some(cgroup.directory().unwrap());
        let mut sleeper = sleeper.start(Deadline::after_ms(20_000)).unwrap();
        let own = node.own(&journal);
        sleeper.kill(Deadline::after_ms(20_000));
        let removed = cgroup.remove();
        assert_eq!(
            own.iter().map(|one| one.process).collect::<Vec<_>>(),
            [sleeper.id().unwrap()]
        );
        assert!(removed.is_ok(), "{removed:?}");
    }

    /// A stack of about 800 bytes: frames above a call of the driver's, and below it some that differ from thread to thread.
    fn stack(number: usize, driver: bool) -> String {
        let frame = if driver {
            "[<0>] os_acquire_rwlock_write+0x35/0x40 [nvidia]"
        } else {
            "[<0>] folio_wait_bit_common+0x13d/0x350"
        };
        let mut frames = vec![
            "[<0>] rwsem_down_write_slowpath+0x2a1/0x5f0".to_owned(),
            frame.to_owned(),
        ];
        frames.extend((0..15).map(|depth| format!("[<0>] rm_ioctl+{number:#x}/{depth:#x} [nvidia_uvm]")));
        if !driver {
            frames.truncate(2);
            frames.extend((0..15).map(|depth| format!("[<0>] nfs_wait_bit_killable+{number:#x}/{depth:#x}")));
        }
        frames.join("\n") + "\n"
    }

    fn thread(state: char, stack: String) -> Thread {
        Thread { state, stack }
    }

    #[test]
    fn a_thousand_waiting_threads_fit_into_one_answer() {
        let processes = (0..20).map(|process| {
            let threads = (0..50).map(|one| thread('D', stack(process * 50 + one, one % 2 == 0)));
            (1000 + process as u32 % 4, threads.collect())
        });
        let found: Vec<(u32, Vec<Thread>)> = processes.collect();
        let question = || Some(by_user(found.into_iter()));
        let all: Option<Vec<Waiting>> = asked(Deadline::after(ALL_TIME), question).expect("one answer");
        let all = all.unwrap();
        assert_eq!(
            all.iter().map(|one| one.uid).collect::<Vec<_>>(),
            [1000, 1001, 1002, 1003]
        );
        for one in &all {
            let driver = stack(0, true)
                .lines()
                .take(2)
                .map(|line| format!("{line}\n"))
                .collect();
            assert_eq!(one.threads, [thread('D', String::new()), thread('D', driver)]);
        }
    }

    #[test]
    fn what_waits_neither_in_state_d_nor_in_the_driver_is_left_out() {
        let of = |threads: Vec<Thread>| by_user([(1000, threads)].into_iter());
        assert_eq!(
            of(vec![thread('S', stack(1, false)), thread('S', String::new())]),
            []
        );
        let held = of(vec![thread('S', stack(1, true))]);
        assert!(held[0].threads[0].stack.ends_with(" [nvidia]\n"), "{held:?}");
    }
}
