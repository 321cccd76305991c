//! What `mpsd` sees of its job, kept for the job's report: written anew at each change, so that a killed `mpsd` has told all
//! that it saw.

use super::dialogue::Event;
use crate::job::spec::SEEN_FD;
use crate::sys::descriptors;
use mpsd_core::GpuUuid;
use mpsd_core::seen::{
    DaemonLost, Killed, LONGEST, LimitChanged, LimitSet, OverMemory, Refused, Seen, ServerLost, keep,
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
    seen: Seen,
    file: Option<File>,
    /// By the pid of the control daemon.
    daemons: BTreeMap<i32, Known>,
    written: Seen,
}

impl Sight {
    /// Into the file that root has handed over; into none where there is none. Call before anything else is opened.
    pub fn open() -> Self {
        Self {
            file: descriptors::take_file(SEEN_FD).map(File::from).ok(),
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
mod tests;
