//! What `mpsd` observes of its job, written at each change, so that a killed `mpsd` has reported
//! it.

use super::dialogue::Event;
use super::logs::UserLog;
use crate::job::spec::{OBSERVATIONS_FD, Spec};
use crate::node::tasks::cgroup_name;
use mpsd_core::observations::{Killed, LONGEST, Observations, Refused, ServerLost, keep};
use mpsd_core::{GpuUuid, JobId, Paths, record};
use mpsd_sys::process::{Process, ProcessWatch};
use mpsd_sys::{Exit, descriptors};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Of one daemon. A server takes 60 a GPU, but a log's owner may write more into it.
const MOST_CLIENTS: usize = 1024;
/// Those of eight GPUs, and half of a process's usual number of descriptors.
const MOST_WATCHED: usize = 480;
/// A client that fails this soon, in its first context, may have another one's error.
const FIRST_CONTEXT: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct DaemonState {
    clients: BTreeSet<i32>,
    /// Those without a context so far.
    connecting: BTreeSet<i32>,
    /// Whether another was there when it left: that a signal ended one may be known late.
    left: BTreeMap<i32, bool>,
    server: Option<i32>,
    to_end: Option<i32>,
    quits: bool,
    /// A signal has ended a client of its server: the next client may get that one's error.
    tainted: bool,
    /// The next client, and when it came.
    heir: Option<(i32, Instant)>,
}

impl DaemonState {
    fn has_others(&self, pid: i32) -> bool {
        let mut all = self.clients.iter().chain(&self.connecting);
        all.any(|one| *one != pid)
    }

    /// Whether `pid` had no context yet, or its first one after another client's death by a signal:
    /// it cannot have caused its error (docs/facts/mps-control.md#error-containment).
    fn is_victim(&self, pid: i32) -> bool {
        let is_heir =
            |(heir, since): (i32, Instant)| heir == pid && since.elapsed() < FIRST_CONTEXT;
        self.connecting.contains(&pid) || self.heir.is_some_and(is_heir)
    }
}

#[derive(Debug, Default)]
pub struct Observer {
    pub all: Observations,
    pub log: UserLog,
    file: Option<File>,
    /// By the pid of the control daemon.
    daemons: BTreeMap<i32, DaemonState>,
    /// `None`: one job has this MPS.
    jobs: Option<JobsOfClients>,
    written: Observations,
}

#[derive(Debug)]
struct JobsOfClients {
    /// Their cgroup tells it.
    known: BTreeMap<i32, JobId>,
    paths: Paths,
    sharers: PathBuf,
}

impl JobsOfClients {
    fn enter(&mut self, client: i32) {
        self.known.remove(&client);
        if self.known.len() >= MOST_CLIENTS {
            self.known.pop_first();
        }
        // This process has another group, so it cannot read the client's environment.
        let name = Process::find(client).and_then(|process| cgroup_name(&process));
        let record = |job: &JobId| self.paths.job(job).record();
        let by_sluid =
            |sluid: &str| record::by_sluid(record, record::sharers(&self.sharers), sluid);
        let job = name.and_then(|name| name.job(&by_sluid));
        self.known.extend(job.map(|job| (client, job)));
    }
}

impl Observer {
    /// Call this before anything else is opened: it takes root's descriptor.
    pub fn open(spec: &Spec) -> Self {
        Self {
            all: Observations {
                mpsd: std::process::id(),
                ..Observations::default()
            },
            jobs: spec.sharers_file().map(|sharers| JobsOfClients {
                known: BTreeMap::new(),
                paths: spec.paths(),
                sharers,
            }),
            file: descriptors::take_file(OBSERVATIONS_FD).map(File::from).ok(),
            ..Self::default()
        }
    }

    #[cfg(test)]
    pub fn knowing(clients: &[(i32, &str)]) -> Self {
        let job = |(pid, job): &(i32, &str)| Some((*pid, JobId::parse(job).ok()?));
        let jobs = JobsOfClients {
            known: clients.iter().filter_map(job).collect(),
            paths: Paths::new(std::path::Path::new(""), ""),
            sharers: PathBuf::new(),
        };
        Self {
            jobs: Some(jobs),
            ..Self::default()
        }
    }

    pub fn take(&mut self, daemon: i32, event: &Event) {
        if let (Event::NewClient(pid), Some(jobs)) = (event, &mut self.jobs) {
            jobs.enter(*pid);
        }
        let state = self.daemons.entry(daemon).or_default();
        match event {
            Event::NewClient(pid) if state.connecting.len() < MOST_CLIENTS => {
                state.connecting.insert(*pid);
                state.left.remove(pid);
                if std::mem::take(&mut state.tainted) {
                    state.heir = Some((*pid, Instant::now()));
                }
            }
            Event::Active(pid) => {
                state.connecting.remove(pid);
                state.left.remove(pid);
            }
            Event::Left(pid) => {
                state.connecting.remove(pid);
                if state.left.len() >= MOST_CLIENTS {
                    state.left.pop_first();
                }
                state.left.insert(*pid, state.has_others(*pid));
            }
            _ => {}
        }
        match event {
            Event::Active(pid)
                if state.clients.len() < MOST_CLIENTS && state.clients.insert(*pid) =>
            {
                self.all.enter(*pid, self.clients());
            }
            Event::Left(pid) if !state.clients.remove(pid) => {
                let (pid, beside) = (*pid, state.clients.len() as u64);
                // A program may try twice (cudarc on driver 580: seen).
                if self.all.refused.iter().all(|refused| refused.pid != pid) {
                    keep(&mut self.all.refused, Refused { pid, beside });
                }
            }
            Event::Ready(pid) => state.server = Some(*pid),
            Event::Quit => state.quits = true,
            Event::ServerToEnd(pid) => state.to_end = Some(*pid),
            Event::ServerExited(pid, status) => {
                let clients = std::mem::take(&mut state.clients).len() as u64;
                if *status != 0 || state.to_end != Some(*pid) {
                    let lost = ServerLost {
                        pid: *pid,
                        status: *status,
                        clients,
                    };
                    keep(&mut self.all.servers_lost, lost);
                }
            }
            Event::Fatal(words) => {
                let culprit = culprit(words).filter(|pid| !state.is_victim(*pid));
                let _ = culprit.map(|pid| keep(&mut self.all.fatal, pid));
            }
            _ => {}
        }
    }

    pub fn take_killed(&mut self, killed: Killed) {
        self.log.line(&killed.to_string());
        // Only a client that computed beside another one has left an error
        // (docs/facts/mps-control.md#error-containment). A server that ends for nothing takes a
        // client that comes at that moment along (806).
        for state in self.daemons.values_mut() {
            let known = state.left.remove(&killed.pid);
            let pid = &killed.pid;
            let is_here = state.clients.contains(pid) || state.connecting.contains(pid);
            state.tainted |= known.unwrap_or(is_here && state.has_others(*pid));
        }
        keep(&mut self.all.killed, killed);
    }

    /// A signal has ended one of its clients, and none is left.
    pub fn needs_new_server(&self, daemon: i32) -> bool {
        self.daemons.get(&daemon).is_some_and(|state| {
            state.tainted && !state.quits && state.clients.is_empty() && state.connecting.is_empty()
        })
    }

    /// The one that the log last named, if the daemon has begun one since its start.
    pub fn server(&self, daemon: i32) -> Option<i32> {
        self.daemons.get(&daemon)?.server
    }

    pub fn ended(&mut self, daemon: i32, server: i32) {
        let state = self.daemons.entry(daemon).or_default();
        (state.to_end, state.tainted) = (Some(server), false);
    }

    /// The client that got a fatal error which it did not cause, by the vendor's words.
    pub fn victim(&self, daemon: i32, words: &str) -> Option<String> {
        let pid = culprit(words)?;
        let state = self.daemons.get(&daemon)?;
        state.is_victim(pid).then(|| self.client(pid))
    }

    /// Those that have a context now.
    pub fn clients(&self) -> u64 {
        let states = self.daemons.values();
        states.map(|state| state.clients.len() as u64).sum()
    }

    /// The client that caused a fatal error, by the vendor's words, if its job is known.
    pub fn culprit(&self, words: &str) -> Option<String> {
        let pid = culprit(words)?;
        self.job(pid).map(|_| self.client(pid))
    }

    pub fn job(&self, pid: i32) -> Option<&JobId> {
        self.jobs.as_ref()?.known.get(&pid)
    }

    /// Whether it is attached to one of our servers, and in a shared MPS its cgroup names the job.
    pub fn is_of_job(&self, pid: i32, job: &JobId) -> bool {
        let mut states = self.daemons.values();
        let is_attached = states.any(|state| state.clients.contains(&pid));
        is_attached && (self.jobs.is_none() || self.job(pid) == Some(job))
    }

    /// Orders clients by age, the oldest first.
    pub fn age(&self, pid: i32) -> Option<usize> {
        self.all.pids.iter().rposition(|known| *known == pid)
    }

    pub fn client(&self, pid: i32) -> String {
        let job = self.job(pid);
        job.map_or(format!("client {pid}"), |job| {
            format!("client {pid} of job {job}")
        })
    }

    /// Whether this daemon was told to quit and has no client left: nothing but its end follows.
    pub fn is_ending(&self, daemon: i32) -> bool {
        let state = self.daemons.get(&daemon);
        state.is_some_and(|state| state.quits && state.to_end.is_some() && state.clients.is_empty())
    }

    pub fn was_told_to_end(&self, daemon: i32, server: i32) -> bool {
        let state = self.daemons.get(&daemon);
        state.is_some_and(|state| state.to_end == Some(server))
    }

    pub fn is_stranger(&self, pid: i32) -> bool {
        let unknown = |state: &DaemonState| {
            state.clients.len() < MOST_CLIENTS && !state.clients.contains(&pid)
        };
        self.all.clients > 0 && self.daemons.values().all(unknown)
    }

    /// For the job's log, and to be read at the end.
    pub fn say(&mut self, sentence: &str) {
        self.log.line(sentence);
        keep(&mut self.all.last_words, sentence.to_owned());
    }

    pub fn forget(&mut self, daemon: i32) {
        self.daemons.remove(&daemon);
    }

    /// A process that only opened a GPU is listed with 0 MiB (docs/facts/mps-control.md#nvml).
    pub fn take_memory(&mut self, clients: &[(i32, GpuUuid, u64)]) {
        let mut gpus: BTreeMap<&GpuUuid, Vec<u64>> = BTreeMap::new();
        for (_, gpu, mib) in clients.iter().filter(|(_, _, mib)| *mib > 0) {
            gpus.entry(gpu).or_default().push(*mib);
        }
        for (gpu, clients) in gpus {
            self.all.take_memory(gpu, &clients);
        }
    }

    pub fn write(&mut self) {
        if self.all == self.written {
            return;
        }
        let line = self.all.line();
        if let Some(file) = self.file.as_ref().filter(|_| line.len() < LONGEST) {
            // One write: a reader finds the old line or the new one, before the rest is cut.
            let _ = file.write_all_at(line.as_bytes(), 0);
            let _ = file.set_len(line.len() as u64);
        }
        self.written = self.all.clone();
    }
}

fn culprit(words: &str) -> Option<i32> {
    let mut words = words.split(|c: char| !c.is_ascii_alphanumeric());
    words.find(|word| word.eq_ignore_ascii_case("client"))?;
    words.find_map(|word| word.parse().ok())
}

/// The living clients. From Linux 6.15 on a pidfd tells how one ended, which NVIDIA's log does not
/// (docs/facts/mps-control.md#how-a-client-ended).
#[derive(Debug, Default)]
pub struct ClientWatch(Vec<(i32, ProcessWatch)>);

impl ClientWatch {
    pub fn take(&mut self, event: &Event) {
        let (Event::NewClient(pid) | Event::Active(pid)) = event else {
            return;
        };
        let is_new = self.0.iter().all(|(known, _)| known != pid);
        if is_new && self.0.len() < MOST_WATCHED {
            self.0
                .extend(ProcessWatch::of(*pid).map(|watch| (*pid, watch)));
        }
    }

    /// One wakes only when its client has ended and the parent has waited for it.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|(_, watch)| watch.descriptor())
    }

    /// The clients that a signal has ended since the last call. All that have ended are forgotten.
    pub fn killed(&mut self) -> Vec<Killed> {
        let mut killed = Vec::new();
        self.0.retain(|(pid, watch)| {
            let Some(end) = watch.end() else { return true };
            if let Some(Exit::Signal(signal)) = end {
                killed.push(Killed { pid: *pid, signal });
            }
            false
        });
        killed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::process::{Child, Command, Stdio};

    /// Log lines in short form: `2 active 5` is from control daemon 2, `active 5` from daemon 1.
    fn observed(lines: &str) -> Observer {
        let mut observer = Observer::default();
        see(&mut observer, lines);
        observer
    }

    fn see(observer: &mut Observer, lines: &str) {
        for line in lines.split("; ").filter(|line| !line.is_empty()) {
            let (daemon, line) = line.strip_prefix("2 ").map_or((1, line), |line| (2, line));
            let words: Vec<&str> = line.split(' ').collect();
            let line = match words[..] {
                ["active", pid] => {
                    format!("Status of client {{PID: {pid}, Context ID: 1}} is ACTIVE")
                }
                ["gone", pid] => format!("Client process {pid} disconnected"),
                ["end", server] => format!("Try shutting down server {server}, backoff is enabled"),
                ["exit", server, status] => format!("Server {server} exited with status {status}"),
                _ => line.to_owned(),
            };
            let event = Event::parse(&format!("[2026-11-22 04:21:29.604 Server  4590] {line}"));
            event.iter().for_each(|event| observer.take(daemon, event));
        }
    }

    #[test]
    fn clients_are_counted_and_only_servers_that_nothing_told_to_end_are_lost() {
        const NONE: &str = "0 clients: no CUDA program used its MPS";
        // Each daemon has its own clients and server.
        const TABLE: &str = "\
active 5; active 5; active 6; gone 5; gone 6; active 5 > 3 clients, 2 at once
active 5; gone 9; gone 9 > 1 client, 1 at once; client 9 got no context; 1 other had one
active 5; exit 691 0 > 1 client, 1 at once; LOST (killed or ended with status 0) with 1 client, which got error 806
end 691; exit 691 0 > NONE
end 691; exit 691 1 > NONE; LOST (status 1) with 0 clients, which got error 806
Client 8349 caused a fatal error on its device > 0 clients, 0 at once; client 8349 caused a fatal GPU error
client {PID: 8349, Context ID: 1} had a fatal exception > 0 clients, 0 at once; client 8349 caused a fatal GPU error
fatal: 3 things > NONE
active 5; 2 active 6; exit 691 0; 2 gone 6 > 2 clients, 2 at once; LOST (killed or ended with status 0) with 1 client, \
which got error 806
end 691; 2 end 692; exit 691 0; 2 exit 692 0 > NONE";
        for row in TABLE.lines() {
            let (lines, told) = row.split_once(" > ").unwrap();
            let told = told
                .replace("NONE", NONE)
                .replace("LOST", "server 691 was lost");
            assert_eq!(observed(lines).all.lines(&[]).join("; "), told, "{lines}");
        }
    }

    #[test]
    fn a_client_that_fails_in_its_first_context_is_no_culprit() {
        const NEW: &str = "NEW CLIENT 7 from user 1001: Server already exists";
        let words = "Client {PID: 7, Context: 1} encountered a fatal GPU error.";
        let told = |lines: &str, killed: bool| {
            let mut observer = observed(lines);
            if killed {
                observer.take_killed(Killed { pid: 5, signal: 9 });
            }
            see(&mut observer, "gone 5; gone 6");
            see(&mut observer, NEW);
            see(&mut observer, "active 7");
            observer.take(1, &Event::Fatal(words.to_owned()));
            (observer.all.fatal.clone(), observer.victim(1, words))
        };
        assert_eq!(told("active 5; active 6", false), (vec![7], None));
        assert_eq!(told("active 5", true), (vec![7], None), "it was alone");
        let victim = Some("client 7".to_owned());
        assert_eq!(told("active 5; active 6", true), (vec![], victim));
        // It has no context yet.
        let mut observer = observed(NEW);
        observer.take(1, &Event::Fatal(words.to_owned()));
        assert!(observer.all.fatal.is_empty() && observer.victim(1, words).is_some());
    }

    #[test]
    fn a_killed_client_of_one_daemon_taints_no_other() {
        let mut observer = observed("active 5; active 6; 2 active 7; 2 active 8");
        observer.take_killed(Killed { pid: 5, signal: 9 });
        see(&mut observer, "gone 5; gone 6; 2 gone 7; 2 gone 8");
        let needs = [1, 2].map(|daemon| observer.needs_new_server(daemon));
        assert_eq!(needs, [true, false]);
    }

    #[test]
    fn a_server_is_replaced_once_a_signal_has_ended_a_client_beside_another_and_none_is_left() {
        let needs = |lines: &str, then: &str| {
            let mut observer = observed(lines);
            assert!(!observer.needs_new_server(1), "nobody was killed: {lines}");
            observer.take_killed(Killed { pid: 5, signal: 9 });
            see(&mut observer, then);
            let needs = observer.needs_new_server(1);
            observer.ended(1, 691);
            let after = observer.needs_new_server(1);
            (needs, after, observer.was_told_to_end(1, 691))
        };
        let new = "NEW CLIENT 7 from user 1001: Server already exists";
        let pair = "active 5; active 6";
        assert_eq!(needs(pair, "gone 5; gone 6"), (true, false, true));
        for (lines, then) in [
            (pair, "gone 5"),
            ("active 5", "gone 5"),
            // Its end is known late: the next one came after it.
            ("active 5; gone 5; active 7", "gone 7"),
            (&format!("active 5; gone 5; {new}"), "active 7; gone 7"),
            (pair, &format!("gone 5; gone 6; {new}")),
            (pair, "gone 5; gone 6; Cmd:quit"),
        ] {
            assert!(!needs(lines, then).0, "{lines}; {then}");
        }
    }

    #[test]
    fn the_job_of_a_client_that_causes_a_fatal_error_is_named_if_it_is_known() {
        let words = "Client 8349 caused a fatal error on its device";
        let of = |observer: Observer| observer.culprit(words);
        let known = of(Observer::knowing(&[(8349, "12")]));
        assert_eq!(known.unwrap(), "client 8349 of job 12");
        assert_eq!(of(Observer::knowing(&[(1, "12")])), None);
        assert_eq!(of(Observer::default()), None);
    }

    #[test]
    fn a_pid_that_is_used_again_has_no_job_of_the_process_before() {
        let mut observer = Observer::knowing(&[(i32::MAX, "12")]);
        assert!(observer.job(i32::MAX).is_some());
        // No process has the highest number, so its job is not known.
        observer.take(1, &Event::NewClient(i32::MAX));
        assert_eq!(observer.job(i32::MAX), None);
    }

    #[test]
    fn a_client_that_no_log_names_is_a_stranger_unless_the_logs_are_too_long() {
        assert!(!Observer::default().is_stranger(7));
        let mut observer = observed("active 5; 2 active 6");
        let strange = [5, 6, 7].map(|pid| observer.is_stranger(pid));
        assert_eq!(strange, [false, false, true]);
        (1..100_000).for_each(|pid| observer.take(1, &Event::Active(pid)));
        assert_eq!(observer.daemons[&1].clients.len(), MOST_CLIENTS);
        assert!(!observer.is_stranger(99_999));
    }

    #[test]
    fn a_daemon_is_ending_once_it_was_told_to_quit_and_no_client_is_left() {
        let quits = "active 5; Cmd:quit -t 1; end 691";
        assert!(!observed(quits).is_ending(1), "a client is there");
        assert!(observed(&format!("{quits}; gone 5")).is_ending(1));
        // Only the server ends.
        assert!(!observed("end 691; gone 5").is_ending(1));
    }

    fn child(line: &str) -> (Child, i32) {
        let mut command = Command::new("/bin/sh");
        let command = command.args(["-c", line]).stdin(Stdio::piped());
        let child = command.spawn().unwrap();
        let pid = child.id().cast_signed();
        (child, pid)
    }

    /// How many descriptors wake within `ms`.
    fn woken(watch: &ClientWatch, ms: u16) -> i32 {
        let fds = watch
            .descriptors()
            .map(|fd| PollFd::new(fd, PollFlags::empty()));
        poll(&mut fds.collect::<Vec<_>>(), PollTimeout::from(ms)).unwrap()
    }

    #[test]
    fn a_client_that_a_signal_ended_is_told_once_it_has_been_waited_for() {
        let mut watch = ClientWatch::default();
        let ((mut victim, killed), (mut well, other)) =
            (child("read x"), child("read x; exit 137"));
        for pid in [killed, other, 0, -1, i32::MAX] {
            watch.take(&Event::NewClient(pid));
            watch.take(&Event::Active(pid));
        }
        watch.take(&Event::Left(std::process::id().cast_signed()));
        let tells = ProcessWatch::of(std::process::id().cast_signed()).is_some();
        assert_eq!(watch.descriptors().count(), if tells { 2 } else { 0 });
        assert_eq!(woken(&watch, 50), 0, "both live");
        victim.kill().unwrap();
        drop(well.stdin.take());
        assert_eq!((woken(&watch, 100), watch.killed()), (0, vec![]), "zombies");
        victim.wait().unwrap();
        well.wait().unwrap();
        if !tells {
            println!("not tried here: this kernel tells of its own children only");
            return;
        }
        assert_eq!(woken(&watch, 5000), 2);
        let (pid, signal) = (killed, 9);
        assert_eq!(watch.killed(), [Killed { pid, signal }]);
        watch.take(&Event::NewClient(killed));
        assert_eq!((watch.killed(), watch.descriptors().count()), (vec![], 0));
    }
}
