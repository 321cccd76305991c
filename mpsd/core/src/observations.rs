//! What a job's `mpsd` saw of the job's clients and servers. `mpsd` is the job user's process: root believes nothing of it,
//! and takes it as that user's word, bounded and printable, into the job's report.
//!
//! `/run/mpsd/jobs/<job>/observations`, root 0600: root makes the file and hands `mpsd` a descriptor of it. One line of JSON.

use super::gpu::GpuUuid;
use super::killed::SignalName;
use super::record::{ClientLimits, RecordGpu};
use super::text::one_line;
use serde::{Deserialize, Serialize};

/// Longest account that is written or read. Bytes.
pub const LONGEST: usize = 64 * 1024;
/// Most entries of each list; what comes after is not kept.
const MOST: usize = 16;
/// Most pids of clients: of more the youngest.
const MOST_PIDS: usize = 512;
/// Most GPUs of a job.
const MOST_GPUS: usize = 64;
/// Longest sentence. Characters.
const SENTENCE: usize = 500;

/// The account.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Observations {
    /// Clients that had a context, each counted once.
    pub clients: u64,
    /// The most of them at once.
    pub most_clients: u64,
    /// Their pids, the youngest last.
    pub pids: Vec<i32>,
    /// What the looks at the GPUs showed; empty where nobody looked.
    pub gpus: Vec<GpuObservations>,
    /// Connections that ended without a context.
    pub refused: Vec<Refused>,
    /// Clients that a signal ended, where the kernel tells of processes that are not one's own (Linux 6.15).
    pub killed: Vec<Killed>,
    /// Servers that ended unasked.
    pub servers_lost: Vec<ServerLost>,
    /// Control daemons that ended.
    pub daemons_lost: Vec<DaemonLost>,
    /// Clients that the vendor's log names for a fatal GPU error.
    pub fatal: Vec<i32>,
    /// Clients that held more memory than their limit.
    pub over_memory: Vec<OverMemory>,
    /// Limits that the owner of a control daemon had it change after the start.
    pub limits_changed: Vec<LimitChanged>,
    /// Limits that its owner set by `mpsctl set`, the youngest.
    pub limits_set: Vec<LimitSet>,
    /// The sentences of the job's log that its user should read at the end.
    pub last_words: Vec<String>,
}

/// A GPU, by looks at it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuObservations {
    /// Which.
    pub uuid: GpuUuid,
    /// The most clients that held memory on it.
    pub most_clients: u64,
    /// The most memory that they held together, MiB, as NVML counts.
    pub most_memory_mib: u64,
}

/// A client that got no context: its server was full, or in FAULT state, or it only looked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Its pid.
    pub pid: i32,
    /// How many others had a context when it went.
    pub beside: u64,
}

/// A client that a signal ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Killed {
    /// Its pid.
    pub pid: i32,
    /// The signal.
    pub signal: i32,
}

/// A server that ended unasked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerLost {
    /// Its pid.
    pub pid: i32,
    /// The status that the control daemon gives; one that was killed has 0 as well.
    pub status: i32,
    /// The clients that it had, which got error 806.
    pub clients: u64,
}

/// A control daemon that ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonLost {
    /// Its pid.
    pub pid: i32,
    /// How: `exit code 0`, `signal 9`.
    pub how: String,
}

/// A client over its memory limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverMemory {
    /// Its pid.
    pub pid: i32,
    /// What it held, MiB.
    pub held_mib: u64,
    /// Its limit, MiB.
    pub limit_mib: u64,
    /// It was ended for it.
    pub terminated: bool,
}

/// A limit that no longer held when it was read back.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display, Serialize, Deserialize)]
#[display("{limit}: {} was asked for, and it says {}", asked.as_deref().unwrap_or("nothing"), said.as_deref().unwrap_or("nothing"))]
pub struct LimitChanged {
    /// What it limits: `active thread percentage`, `memory limit 4096M of GPU-…`.
    pub limit: String,
    /// As it was asked for; `None`: nothing was asked.
    pub asked: Option<String>,
    /// The control daemon's word; `None`: it says nothing.
    pub said: Option<String>,
}

/// A limit that was set while the job ran, within the site's ceilings.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display, Serialize, Deserialize)]
#[display("{limit}: from {} to {to}", from.as_deref().unwrap_or("none"))]
pub struct LimitSet {
    /// What it limits: `active thread percentage`, `memory limit of GPU-…`.
    pub limit: String,
    /// What it was before; `None`: there was none.
    pub from: Option<String>,
    /// What it is from then on.
    pub to: String,
    /// When, seconds since 1970.
    pub at: u64,
}

impl LimitSet {
    /// What it says of the thread percentage, and of a GPU's memory.
    pub const THREADS: &str = "active thread percentage";
    /// What stands before the GPU.
    pub const MEMORY: &str = "memory limit of ";

    /// The limit that was set; nothing where it is none that this release knows.
    pub fn limits(&self) -> ClientLimits {
        let memory = || {
            let gpu = GpuUuid::parse(self.limit.strip_prefix(Self::MEMORY)?).ok()?;
            Some((gpu, self.to.strip_suffix('M')?.parse().ok()?))
        };
        let threads = (self.limit == Self::THREADS).then(|| self.to.parse().ok());
        ClientLimits {
            threads: threads.flatten(),
            memory: memory().into_iter().collect(),
        }
    }
}

/// Appends to a list that is kept short.
pub fn keep<T>(list: &mut Vec<T>, entry: T) {
    if list.len() < MOST {
        list.push(entry);
    }
}

impl Observations {
    /// The account as its user's process wrote it; `None`: it is none. No list is longer than ours are, and no text has a
    /// control character.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let line = bytes.split(|byte| *byte == b'\n').next()?;
        let mut observations: Self = serde_json::from_slice(line).ok()?;
        observations.gpus.truncate(MOST_GPUS);
        observations.refused.truncate(MOST);
        observations.pids.truncate(MOST_PIDS);
        observations.killed.truncate(MOST);
        observations.servers_lost.truncate(MOST);
        observations.daemons_lost.truncate(MOST);
        observations.fatal.truncate(MOST);
        observations.over_memory.truncate(MOST);
        observations.limits_changed.truncate(MOST);
        observations.limits_set.truncate(MOST);
        observations.last_words.truncate(MOST);
        for daemon in &mut observations.daemons_lost {
            daemon.how = one_line(&daemon.how, 80);
        }
        for change in &mut observations.limits_changed {
            change.limit = one_line(&change.limit, 160);
            for text in [&mut change.asked, &mut change.said].into_iter().flatten() {
                *text = one_line(text, 80);
            }
        }
        for set in &mut observations.limits_set {
            set.limit = one_line(&set.limit, 160);
            for text in set.from.iter_mut().chain([&mut set.to]) {
                *text = one_line(text, 80);
            }
        }
        for sentence in &mut observations.last_words {
            *sentence = one_line(sentence, SENTENCE);
        }
        Some(observations)
    }

    /// Its line.
    pub fn line(&self) -> String {
        serde_json::to_string(self).map_or_else(|_| String::new(), |text| text + "\n")
    }

    /// All of it in words, of a job with these GPUs: first the clients.
    pub fn told(&self, gpus: &[RecordGpu]) -> Vec<String> {
        let mut lines = vec![format!("{} clients, {} at once", self.clients, self.most_clients)];
        let look = |gpu: &RecordGpu| {
            let look = self.gpus.iter().find(|look| look.uuid == gpu.uuid);
            match look {
                Some(look) => format!(
                    "GPU {}: at most {} clients and {} MiB at a look",
                    gpu.index, look.most_clients, look.most_memory_mib
                ),
                None => format!("GPU {}: no client at any look", gpu.index),
            }
        };
        lines.extend(gpus.iter().map(look));
        let refused = |client: &Refused| {
            format!(
                "client {} got no context; {} others had one",
                client.pid, client.beside
            )
        };
        lines.extend(self.refused.iter().map(refused));
        let killed = |client: &Killed| {
            let signal = SignalName(client.signal);
            format!("client {} was ended by {signal}", client.pid)
        };
        lines.extend(self.killed.iter().map(killed));
        let server = |server: &ServerLost| {
            let how = match server.status {
                0 => "killed or ended with status 0".to_owned(),
                status => format!("status {status}"),
            };
            format!(
                "server {} was lost ({how}) with {} clients, which got error 806",
                server.pid, server.clients
            )
        };
        lines.extend(self.servers_lost.iter().map(server));
        let daemon = |daemon: &DaemonLost| format!("control daemon {} was lost ({})", daemon.pid, daemon.how);
        lines.extend(self.daemons_lost.iter().map(daemon));
        let fatal = |pid: &i32| format!("client {pid} caused a fatal GPU error");
        lines.extend(self.fatal.iter().map(fatal));
        let changed =
            |change: &LimitChanged| format!("the user had the control daemon change a limit: {change}");
        lines.extend(self.limits_changed.iter().map(changed));
        let set = |set: &LimitSet| format!("set while the job ran (mpsctl set): {set}");
        lines.extend(self.limits_set.iter().map(set));
        let over = |over: &OverMemory| {
            let ended = if over.terminated { ", and was ended" } else { "" };
            format!(
                "client {} held {} MiB over a limit of {} MiB{ended}",
                over.pid, over.held_mib, over.limit_mib
            )
        };
        lines.extend(self.over_memory.iter().map(over));
        lines
    }

    /// A client has a context: counts it, and `now` of them at once.
    pub fn enter(&mut self, pid: i32, now: u64) {
        self.clients += 1;
        self.most_clients = self.most_clients.max(now);
        if self.pids.len() == MOST_PIDS {
            self.pids.remove(0);
        }
        self.pids.push(pid);
    }

    /// Whether this was the pid of a client.
    pub fn is_client(&self, pid: i32) -> bool {
        self.pids.contains(&pid) || self.killed.iter().any(|killed| killed.pid == pid)
    }

    /// Enters a limit that was set; of too many the oldest go.
    pub fn set(&mut self, set: LimitSet) {
        if self.limits_set.len() == MOST {
            self.limits_set.remove(0);
        }
        self.limits_set.push(set);
    }

    /// What the looks at one GPU showed: enters what is more than before.
    pub fn look(&mut self, gpu: &GpuUuid, clients: u64, memory_mib: u64) {
        match self.gpus.iter_mut().find(|known| known.uuid == *gpu) {
            Some(known) => {
                known.most_clients = known.most_clients.max(clients);
                known.most_memory_mib = known.most_memory_mib.max(memory_mib);
            }
            None => self.gpus.push(GpuObservations {
                uuid: gpu.clone(),
                most_clients: clients,
                most_memory_mib: memory_mib,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_comes_back_as_it_was_written() {
        let mut observations = Observations::default();
        let gpu = GpuUuid::parse("GPU-01").unwrap();
        observations.look(&gpu, 2, 600);
        observations.look(&gpu, 1, 900);
        observations.last_words.push("server 7 died".to_owned());
        keep(&mut observations.refused, Refused { pid: 9, beside: 48 });
        assert_eq!(
            Observations::parse(observations.line().as_bytes()),
            Some(observations.clone())
        );
        assert_eq!(
            (
                observations.gpus[0].most_clients,
                observations.gpus[0].most_memory_mib
            ),
            (2, 900)
        );
        // What stood there before a shorter one was written over it.
        let text = observations.line() + "old\": 1}";
        assert_eq!(Observations::parse(text.as_bytes()), Some(observations));
    }

    #[test]
    fn what_a_user_may_write_is_bounded_and_printable() {
        let many = (0..1000).map(|n| format!("{n}\u{1b}[2J\n{}", "x".repeat(5000)));
        let hostile = Observations {
            last_words: many.collect(),
            fatal: vec![1; 1000],
            pids: vec![1; 10_000],
            killed: vec![Killed { pid: 1, signal: 9 }; 1000],
            limits_changed: vec![
                LimitChanged {
                    limit: "\u{1b}[2J".repeat(1000),
                    asked: None,
                    said: Some("\u{7}\n".repeat(1000)),
                };
                1000
            ],
            ..Observations::default()
        };
        let observations = Observations::parse(hostile.line().as_bytes()).unwrap();
        assert!(observations.last_words.len() == MOST && observations.fatal.len() == MOST);
        assert!(observations.pids.len() == MOST_PIDS && observations.killed.len() == MOST);
        let clean = |text: &String| !text.contains(char::is_control) && text.chars().count() <= SENTENCE + 3;
        assert!(observations.last_words.iter().all(clean));
        assert_eq!(observations.limits_changed.len(), MOST);
        assert!(
            observations
                .limits_changed
                .iter()
                .all(|change| clean(&change.to_string()))
        );
        for none in [
            "",
            "{",
            "null",
            "7",
            "\u{0}",
            "{\"clients\": -1}",
            "{\"gpus\": [{\"uuid\": \"/etc\"}]}",
        ] {
            assert_eq!(Observations::parse(none.as_bytes()), None, "{none:?}");
        }
    }

    #[test]
    fn of_the_clients_the_youngest_are_known() {
        let mut observations = Observations::default();
        for pid in 1..=600 {
            observations.enter(pid, 3);
        }
        assert_eq!(
            (
                observations.clients,
                observations.most_clients,
                observations.pids.len()
            ),
            (600, 3, MOST_PIDS)
        );
        assert!(observations.is_client(600) && !observations.is_client(1) && !observations.is_client(601));
        assert!(
            observations.line().len() < LONGEST / 2,
            "{}",
            observations.line().len()
        );
    }
}
