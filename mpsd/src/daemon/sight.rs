//! What `mpsd` sees of its job, kept for the job's report: written anew at each change, so that a killed `mpsd` has told all
//! that it saw.

use super::dialogue::Event;
use crate::job::spec::OBSERVATIONS_FD;
use crate::sys::descriptors;
use mpsd_core::GpuUuid;
use mpsd_core::observations::{
    DaemonLost, Killed, LONGEST, LimitChanged, LimitSet, Observations, OverMemory, Refused, ServerLost, keep,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Most clients of one daemon that are remembered. A server takes 60 a GPU; a log is its user's, who may write more into it.
const MOST_CLIENTS: usize = 1024;

/// What the log of one daemon says now.
#[derive(Debug, Default)]
struct Known {
    /// The clients that have a context.
    clients: BTreeSet<i32>,
    /// The server that was told to end.
    to_end: Option<i32>,
    /// The daemon was told so.
    quits: bool,
}

/// The account, and where it goes.
#[derive(Debug, Default)]
pub struct Sight {
    seen: Observations,
    file: Option<File>,
    /// By the pid of the control daemon.
    daemons: BTreeMap<i32, Known>,
    written: Observations,
}

impl Sight {
    /// Into the file that root has handed over; into none where there is none. Call before anything else is opened.
    pub fn open() -> Self {
        Self {
            file: descriptors::take_file(OBSERVATIONS_FD).map(File::from).ok(),
            ..Self::default()
        }
    }

    /// Takes an event of the vendor's log in. `daemon`: the pid of the control daemon whose log it is.
    pub fn take(&mut self, daemon: i32, event: &Event) {
        let known = self.daemons.entry(daemon).or_default();
        match event {
            Event::Active(pid) if known.clients.len() < MOST_CLIENTS && known.clients.insert(*pid) => {
                let now = self.daemons.values().map(|known| known.clients.len() as u64);
                self.seen.enter(*pid, now.sum());
            }
            Event::Left(pid) if !known.clients.remove(pid) => {
                let (pid, beside) = (*pid, known.clients.len() as u64);
                // A program may try twice (cudarc on driver 580: seen).
                if self.seen.refused.iter().all(|refused| refused.pid != pid) {
                    keep(&mut self.seen.refused, Refused { pid, beside });
                }
            }
            Event::Quit => known.quits = true,
            Event::ServerToEnd(pid) => known.to_end = Some(*pid),
            Event::ServerExited(pid, status) => {
                let clients = std::mem::take(&mut known.clients).len() as u64;
                if *status != 0 || known.to_end != Some(*pid) {
                    let (pid, status) = (*pid, *status);
                    keep(&mut self.seen.servers_lost, ServerLost { pid, status, clients });
                }
            }
            Event::Fatal(words) => self
                .seen
                .fatal
                .extend(culprit(words).filter(|_| self.seen.fatal.len() < 16)),
            _ => {}
        }
    }

    /// Whether this daemon is ending, with a server that has no clients: nothing will happen any more but its end.
    pub fn is_ending(&self, daemon: i32) -> bool {
        let known = self.daemons.get(&daemon);
        known.is_some_and(|known| known.quits && known.to_end.is_some() && known.clients.is_empty())
    }

    /// Whether this daemon's server was told to end.
    pub fn was_told_to_end(&self, daemon: i32, server: i32) -> bool {
        let known = self.daemons.get(&daemon);
        known.is_some_and(|known| known.to_end == Some(server))
    }

    /// Whether the logs know every client, and not this one.
    pub fn is_stranger(&self, pid: i32) -> bool {
        let unknown = |known: &Known| known.clients.len() < MOST_CLIENTS && !known.clients.contains(&pid);
        self.seen.clients > 0 && self.daemons.values().all(unknown)
    }

    /// A sentence that the user should read at the end.
    pub fn say(&mut self, sentence: &str) {
        keep(&mut self.seen.last_words, sentence.to_owned());
    }

    /// A control daemon has ended.
    pub fn lose(&mut self, pid: i32, how: String) {
        self.daemons.remove(&pid);
        keep(&mut self.seen.daemons_lost, DaemonLost { pid, how });
    }

    /// A client is over its limit.
    pub fn exceed(&mut self, over: OverMemory) {
        keep(&mut self.seen.over_memory, over);
    }

    /// A signal ended a client.
    pub fn kill(&mut self, killed: Killed) {
        keep(&mut self.seen.killed, killed);
    }

    /// A limit no longer holds.
    pub fn change(&mut self, change: LimitChanged) {
        keep(&mut self.seen.limits_changed, change);
    }

    /// A limit was set for the job's owner.
    pub fn set(&mut self, set: LimitSet) {
        self.seen.set(set);
    }

    /// A look at the GPUs: pid, GPU, MiB of each client. One that has only looked at a GPU is listed with nothing
    /// (docs/facts/mps-control.md#nvml).
    pub fn look(&mut self, clients: &[(i32, GpuUuid, u64)]) {
        let mut gpus: BTreeMap<&GpuUuid, (u64, u64)> = BTreeMap::new();
        for (_, gpu, mib) in clients.iter().filter(|(_, _, mib)| *mib > 0) {
            let (count, memory) = gpus.entry(gpu).or_default();
            (*count, *memory) = (*count + 1, *memory + mib);
        }
        for (gpu, (count, memory)) in gpus {
            self.seen.look(gpu, count, memory);
        }
    }

    /// Writes it down where it has changed.
    pub fn write(&mut self) {
        if self.seen == self.written {
            return;
        }
        let line = self.seen.line();
        if let Some(file) = self.file.as_ref().filter(|_| line.len() < LONGEST) {
            // One write, so that a reader finds the old line or the new one; the rest of a longer old one is cut after it.
            let _ = file.write_all_at(line.as_bytes(), 0);
            let _ = file.set_len(line.len() as u64);
        }
        self.written = self.seen.clone();
    }
}

/// The client that a line about a fatal error names.
fn culprit(words: &str) -> Option<i32> {
    let mut words = words.split(|c: char| !c.is_ascii_alphanumeric());
    words.find(|word| word.eq_ignore_ascii_case("client"))?;
    words.find_map(|word| word.parse().ok())
}

#[cfg(test)]
mod tests {
    //! Lines of the log, as recorded, and what is made of them.

    use super::*;

    fn seen(lines: &[&str]) -> Observations {
        let mut sight = Sight::default();
        for line in lines {
            let line = format!("[2026-11-22 04:21:29.604 Server  4590] {line}");
            if let Some(event) = Event::parse(&line) {
                sight.take(1, &event);
            }
        }
        sight.seen
    }

    fn active(pid: i32) -> String {
        format!("Status of client {{PID: {pid}, Context ID: 1}} is ACTIVE")
    }

    #[test]
    fn clients_are_counted_once_and_the_most_at_a_time() {
        let (first, second) = (active(4605), active(4616));
        let gone = "Client process 4605 disconnected";
        let account = seen(&[
            &first,
            &first,
            &second,
            gone,
            "Client process 4616 disconnected",
            &first,
        ]);
        assert_eq!((account.clients, account.most_clients), (3, 2));
        assert_eq!(account.refused, []);
    }

    #[test]
    fn a_client_that_goes_without_a_context_is_named_with_how_many_had_one() {
        let some: Vec<String> = (100..148).map(active).collect();
        let mut lines: Vec<&str> = some.iter().map(String::as_str).collect();
        lines.extend(["Client process 999 disconnected"; 2]);
        assert_eq!(seen(&lines).refused, [Refused { pid: 999, beside: 48 }]);
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
        assert_eq!(
            seen(&[&active(5), "Server 691 exited with status 0"]).servers_lost,
            lost(1, 0)
        );
        let told = "Try shutting down server 691, backoff is enabled";
        assert_eq!(seen(&[told, "Server 691 exited with status 0"]).servers_lost, []);
        assert_eq!(
            seen(&[told, "Server 691 exited with status 1"]).servers_lost,
            lost(0, 1)
        );
    }

    #[test]
    fn a_fatal_error_names_its_client_where_the_line_does() {
        assert_eq!(
            seen(&["Client 8349 caused a fatal error on its device"]).fatal,
            [8349]
        );
        assert_eq!(
            seen(&["client {PID: 8349, Context ID: 1} had a fatal exception"]).fatal,
            [8349]
        );
        assert_eq!(seen(&["fatal: 3 things"]).fatal, Vec::<i32>::new());
    }

    /// Takes these lines of the logs of control daemons 1 and 2 in.
    fn of_two(lines: &[(i32, &str)]) -> Sight {
        let mut sight = Sight::default();
        for (daemon, line) in lines {
            let event = Event::parse(&format!("[2026-11-22 04:21:29.604 Server  4590] {line}"));
            sight.take(*daemon, &event.expect(line));
        }
        sight
    }

    #[test]
    fn a_lost_server_takes_its_own_daemons_clients_alone() {
        let (first, second) = (active(5), active(6));
        let lost = "Server 691 exited with status 0";
        let sight = of_two(&[
            (1, &first),
            (2, &second),
            (1, lost),
            (2, "Client process 6 disconnected"),
        ]);
        assert_eq!((sight.seen.clients, sight.seen.most_clients), (2, 2));
        assert_eq!(sight.seen.servers_lost[0].clients, 1);
        assert_eq!(sight.seen.refused, []);
    }

    #[test]
    fn servers_of_two_daemons_that_are_told_to_end_at_once_are_both_told() {
        let sight = of_two(&[
            (1, "Try shutting down server 691, backoff is enabled"),
            (2, "Try shutting down server 692, backoff is enabled"),
            (1, "Server 691 exited with status 0"),
            (2, "Server 692 exited with status 0"),
        ]);
        assert_eq!(sight.seen.servers_lost, []);
    }

    #[test]
    fn a_log_with_clients_without_end_is_remembered_to_a_bound() {
        let mut sight = Sight::default();
        for pid in 1..100_000 {
            sight.take(1, &Event::Active(pid));
        }
        assert_eq!(sight.daemons[&1].clients.len(), MOST_CLIENTS);
        assert_eq!(sight.seen.most_clients, MOST_CLIENTS as u64);
        // It knows no longer whose clients there are.
        assert!(!sight.is_stranger(99_999));
    }

    #[test]
    fn a_client_that_no_log_names_is_a_stranger_once_one_names_any() {
        assert!(!Sight::default().is_stranger(7));
        let (first, second) = (active(5), active(6));
        let sight = of_two(&[(1, &first), (2, &second)]);
        assert_eq!([5, 6, 7].map(|pid| sight.is_stranger(pid)), [false, false, true]);
    }

    #[test]
    fn a_daemon_is_ending_once_it_was_told_to_quit_and_nobody_is_left() {
        let mut sight = Sight::default();
        let mut ending = |message: &str| {
            let line = format!("[2026-11-22 04:21:29.604 Control  4590] {message}");
            if let Some(event) = Event::parse(&line) {
                sight.take(1, &event);
            }
            sight.is_ending(1)
        };
        assert!(!ending(&active(5)));
        assert!(!ending("Cmd:quit -t 1"));
        assert!(
            !ending("Try shutting down server 691, backoff is disabled"),
            "a client is there"
        );
        assert!(ending("Client process 5 disconnected"));

        let mut other = Sight::default();
        let told = "[x Control 1] Try shutting down server 691, backoff is enabled";
        other.take(2, &Event::parse(told).unwrap());
        assert!(!other.is_ending(2), "the daemon itself stays");
    }
}
