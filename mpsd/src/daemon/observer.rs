//! What `mpsd` observes of its job, for the job's report. Written at each change, so a killed `mpsd` has reported everything.

use super::dialogue::Event;
use super::logs::UserLog;
use crate::job::spec::OBSERVATIONS_FD;
use crate::sys::process::ProcessWatch;
use crate::sys::{Exit, descriptors};
use mpsd_core::GpuUuid;
use mpsd_core::observations::{Killed, LONGEST, Observations, Refused, ServerLost, keep};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt as _;

/// Most clients of one daemon that are remembered. A server takes 60 a GPU, but a log's owner may write more into it.
const MOST_CLIENTS: usize = 1024;
/// Most clients that are watched: those of eight GPUs, and half of a process's usual number of descriptors.
const MOST_WATCHED: usize = 480;

#[derive(Debug, Default)]
struct DaemonState {
    clients: BTreeSet<i32>,
    to_end: Option<i32>,
    quits: bool,
}

#[derive(Debug, Default)]
pub struct Observer {
    pub all: Observations,
    pub log: UserLog,
    file: Option<File>,
    /// By the pid of the control daemon.
    daemons: BTreeMap<i32, DaemonState>,
    written: Observations,
}

impl Observer {
    /// Takes root's file. Call this before anything else is opened.
    pub fn open() -> Self {
        Self {
            file: descriptors::take_file(OBSERVATIONS_FD).map(File::from).ok(),
            ..Self::default()
        }
    }

    pub fn take(&mut self, daemon: i32, event: &Event) {
        let state = self.daemons.entry(daemon).or_default();
        match event {
            Event::Active(pid) if state.clients.len() < MOST_CLIENTS && state.clients.insert(*pid) => {
                let now = self.daemons.values().map(|state| state.clients.len() as u64);
                self.all.enter(*pid, now.sum());
            }
            Event::Left(pid) if !state.clients.remove(pid) => {
                let (pid, beside) = (*pid, state.clients.len() as u64);
                // A program may try twice (cudarc on driver 580: seen).
                if self.all.refused.iter().all(|refused| refused.pid != pid) {
                    keep(&mut self.all.refused, Refused { pid, beside });
                }
            }
            Event::Quit => state.quits = true,
            Event::ServerToEnd(pid) => state.to_end = Some(*pid),
            Event::ServerExited(pid, status) => {
                let clients = std::mem::take(&mut state.clients).len() as u64;
                if *status != 0 || state.to_end != Some(*pid) {
                    let (pid, status) = (*pid, *status);
                    keep(&mut self.all.servers_lost, ServerLost { pid, status, clients });
                }
            }
            Event::Fatal(words) => {
                let _ = culprit(words).map(|pid| keep(&mut self.all.fatal, pid));
            }
            _ => {}
        }
    }

    /// Whether this daemon was told to quit and its server has no client left: only its end will follow.
    pub fn is_ending(&self, daemon: i32) -> bool {
        let state = self.daemons.get(&daemon);
        state.is_some_and(|state| state.quits && state.to_end.is_some() && state.clients.is_empty())
    }

    pub fn was_told_to_end(&self, daemon: i32, server: i32) -> bool {
        let state = self.daemons.get(&daemon);
        state.is_some_and(|state| state.to_end == Some(server))
    }

    pub fn is_stranger(&self, pid: i32) -> bool {
        let unknown =
            |state: &DaemonState| state.clients.len() < MOST_CLIENTS && !state.clients.contains(&pid);
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

    /// Adds what NVML counts. A process that only opened a GPU is listed with 0 MiB (docs/facts/mps-control.md#nvml).
    pub fn take_memory(&mut self, clients: &[(i32, GpuUuid, u64)]) {
        let mut gpus: BTreeMap<&GpuUuid, (u64, u64)> = BTreeMap::new();
        for (_, gpu, mib) in clients.iter().filter(|(_, _, mib)| *mib > 0) {
            let (count, memory) = gpus.entry(gpu).or_default();
            (*count, *memory) = (*count + 1, *memory + mib);
        }
        for (gpu, (count, memory)) in gpus {
            self.all.take_memory(gpu, count, memory);
        }
    }

    pub fn write(&mut self) {
        if self.all == self.written {
            return;
        }
        let line = self.all.line();
        if let Some(file) = self.file.as_ref().filter(|_| line.len() < LONGEST) {
            // One write: a reader finds the old line or the new one. The rest of a longer old line is cut afterward.
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

/// The living clients, each with a pidfd, which tells from Linux 6.15 on how a client ended. NVIDIA's log does not
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
            self.0.extend(ProcessWatch::of(*pid).map(|watch| (*pid, watch)));
        }
    }

    /// Each of these wakes only when a client has ended and its parent has waited for it.
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

    /// Takes in these lines of the logs of control daemons 1 and 2.
    fn observed(lines: &[(i32, &str)]) -> Observer {
        let mut observer = Observer::default();
        for (daemon, line) in lines {
            let event = Event::parse(&format!("[2026-11-22 04:21:29.604 Server  4590] {line}"));
            event.iter().for_each(|event| observer.take(*daemon, event));
        }
        observer
    }

    fn of_one(lines: &[&str]) -> Observations {
        observed(&lines.iter().map(|line| (1, *line)).collect::<Vec<_>>()).all
    }

    fn active(pid: i32) -> String {
        format!("Status of client {{PID: {pid}, Context ID: 1}} is ACTIVE")
    }

    #[test]
    fn clients_are_counted_once_and_the_most_at_a_time() {
        let (first, second) = (active(4605), active(4616));
        let gone = [
            "Client process 4605 disconnected",
            "Client process 4616 disconnected",
        ];
        let found = of_one(&[&first, &first, &second, gone[0], gone[1], &first]);
        assert_eq!((found.clients, found.most_clients), (3, 2));
        assert_eq!(found.refused, []);
    }

    #[test]
    fn a_client_that_leaves_without_a_context_is_named_with_how_many_had_one() {
        let some: Vec<String> = (100..148).map(active).collect();
        let mut lines: Vec<&str> = some.iter().map(String::as_str).collect();
        lines.extend(["Client process 999 disconnected"; 2]);
        assert_eq!(of_one(&lines).refused, [Refused { pid: 999, beside: 48 }]);
    }

    #[test]
    fn a_server_that_ended_unasked_is_named_and_one_that_was_told_to_is_not() {
        let lost = |clients, status| {
            [ServerLost {
                pid: 691,
                status,
                clients,
            }]
        };
        let told = "Try shutting down server 691, backoff is enabled";
        let (zero, one) = (
            "Server 691 exited with status 0",
            "Server 691 exited with status 1",
        );
        assert_eq!(of_one(&[&active(5), zero]).servers_lost, lost(1, 0));
        assert_eq!(of_one(&[told, zero]).servers_lost, []);
        assert_eq!(of_one(&[told, one]).servers_lost, lost(0, 1));
    }

    #[test]
    fn a_fatal_error_names_its_client_if_the_line_does() {
        for (line, pids) in [
            ("Client 8349 caused a fatal error on its device", vec![8349]),
            (
                "client {PID: 8349, Context ID: 1} had a fatal exception",
                vec![8349],
            ),
            ("fatal: 3 things", vec![]),
        ] {
            assert_eq!(of_one(&[line]).fatal, pids, "{line}");
        }
    }

    #[test]
    fn each_daemon_has_its_own_clients_and_server() {
        let (first, second) = (active(5), active(6));
        let (lost, gone) = ("Server 691 exited with status 0", "Client process 6 disconnected");
        let found = observed(&[(1, &first), (2, &second), (1, lost), (2, gone)]).all;
        assert_eq!((found.clients, found.most_clients), (2, 2));
        assert_eq!((found.servers_lost[0].clients, found.refused.len()), (1, 0));
        let told = observed(&[
            (1, "Try shutting down server 691, backoff is enabled"),
            (2, "Try shutting down server 692, backoff is enabled"),
            (1, lost),
            (2, "Server 692 exited with status 0"),
        ]);
        assert_eq!(told.all.servers_lost, []);
    }

    #[test]
    fn a_client_that_no_log_names_is_a_stranger_unless_the_logs_are_too_long() {
        assert!(!Observer::default().is_stranger(7));
        let (first, second) = (active(5), active(6));
        let mut observer = observed(&[(1, &first), (2, &second)]);
        assert_eq!(
            [5, 6, 7].map(|pid| observer.is_stranger(pid)),
            [false, false, true]
        );
        (1..100_000).for_each(|pid| observer.take(1, &Event::Active(pid)));
        assert_eq!(observer.daemons[&1].clients.len(), MOST_CLIENTS);
        assert!(!observer.is_stranger(99_999));
    }

    #[test]
    fn a_daemon_is_ending_once_it_was_told_to_quit_and_no_client_is_left() {
        let client = active(5);
        let mut lines = vec![(1, client.as_str()), (1, "Cmd:quit -t 1")];
        lines.push((1, "Try shutting down server 691, backoff is disabled"));
        assert!(!observed(&lines).is_ending(1), "a client is there");
        lines.push((1, "Client process 5 disconnected"));
        assert!(observed(&lines).is_ending(1));
        assert!(!observed(&lines[2..]).is_ending(1), "only the server ends");
    }

    fn child(line: &str) -> (Child, i32) {
        let mut command = Command::new("/bin/sh");
        let child = command.args(["-c", line]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id().cast_signed();
        (child, pid)
    }

    /// How many descriptors wake within `ms`.
    fn woken(watch: &ClientWatch, ms: u16) -> i32 {
        let fds = watch.descriptors().map(|fd| PollFd::new(fd, PollFlags::empty()));
        poll(&mut fds.collect::<Vec<_>>(), PollTimeout::from(ms)).unwrap()
    }

    #[test]
    fn a_client_that_a_signal_ended_is_told_once_it_has_been_waited_for() {
        let mut watch = ClientWatch::default();
        let ((mut victim, killed), (mut well, other)) = (child("read x"), child("read x; exit 137"));
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
        let signal = 9;
        assert_eq!(watch.killed(), [Killed { pid: killed, signal }]);
        watch.take(&Event::NewClient(killed));
        assert_eq!((watch.killed(), watch.descriptors().count()), (vec![], 0), "gone");
    }
}
