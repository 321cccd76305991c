//! What a job's `mpsd` saw of clients and servers: the user's word, by which root proves nothing.
//! Bounded and printable. `/run/mpsd/jobs/<job>/observations`, root 0600: root makes the file and
//! hands `mpsd` a descriptor of it. One line of JSON.

use super::gpu::GpuUuid;
use super::job::JobId;
use super::killed::SignalName;
use super::record::RecordGpu;
use super::text::{count, one_line};
use super::usage::{self, Usage};
use derive_more::Display;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Longest line that is written or read, bytes.
pub const LONGEST: usize = 64 * 1024;
const MOST: usize = 16;
const MOST_PIDS: usize = 512;
const MOST_GPUS: usize = 64;
const MOST_JOBS: usize = 64;

const NONE: &str = "0 clients: no CUDA program used its MPS";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Observations {
    pub mpsd: u32,
    /// Clients that had a context, each counted once.
    pub clients: u64,
    pub most_clients: u64,
    /// Their pids, the youngest last.
    pub pids: Vec<i32>,
    /// What the checks of the GPUs showed; empty: there was no check.
    pub gpus: Vec<GpuObservations>,
    /// The memory of each job that has a limit for all its clients.
    pub jobs: Vec<JobMemory>,
    pub refused: Vec<Refused>,
    /// Clients that a signal ended, if the kernel tells of them (Linux 6.15).
    pub killed: Vec<Killed>,
    pub servers_lost: Vec<ServerLost>,
    pub daemons_lost: Vec<DaemonLost>,
    /// Clients that the vendor's log names for a fatal GPU error.
    pub fatal: Vec<i32>,
    pub over_memory: Vec<OverMemory>,
    pub outside: Vec<i32>,
    /// The sentences of the job's log that its user should read at the end.
    pub last_words: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuObservations {
    pub uuid: GpuUuid,
    pub most_clients: u64,
    /// The most memory that they held together, MiB, as NVML counts.
    pub most_memory_mib: u64,
    /// The most that one of them held, likewise.
    #[serde(default)]
    pub most_client_mib: u64,
}

/// The most that a job's clients held together on a GPU, and may hold, MiB as NVML counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobMemory {
    pub job: JobId,
    pub gpu: GpuUuid,
    pub held_mib: u64,
    pub limit_mib: u64,
}

/// A client without a context: its server was full or in FAULT state, or it asked for none.
#[derive(Debug, Clone, PartialEq, Eq, Display, Serialize, Deserialize)]
#[display("client {pid} got no context; {} had one", count(*beside, "other"))]
pub struct Refused {
    pub pid: i32,
    /// The number of other clients with a context when it ended.
    pub beside: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Display, Serialize, Deserialize)]
#[display("client {pid} was ended by {}", SignalName(*signal))]
pub struct Killed {
    pub pid: i32,
    pub signal: i32,
}

#[derive(Debug, Clone, PartialEq, Eq, Display, Serialize, Deserialize)]
#[display("server {pid} was lost ({}) with {}, which got error 806", how_ended(*status), count(*clients, "client"))]
pub struct ServerLost {
    pub pid: i32,
    /// The status in the control daemon's log; 0 also for a killed server.
    pub status: i32,
    pub clients: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Display, Serialize, Deserialize)]
#[display("control daemon {pid} was lost ({how})")]
pub struct DaemonLost {
    pub pid: i32,
    pub how: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Display, Serialize, Deserialize)]
#[display("client {pid} held {held_mib} MiB over a limit of {limit_mib} MiB{}", if *terminated { ", and was ended" } else { "" })]
pub struct OverMemory {
    pub pid: i32,
    pub held_mib: u64,
    pub limit_mib: u64,
    pub terminated: bool,
}

fn bound(name: &str, value: &mut Value) {
    let (characters, entries) = match name {
        "last_words" => (500, MOST),
        "pids" => (80, MOST_PIDS),
        "gpus" => (80, MOST_GPUS),
        "jobs" => (80, MOST_JOBS),
        "job" => (255, MOST),
        "busy" | "clients" => (0, usage::BUCKETS),
        _ => (80, MOST),
    };
    match value {
        Value::String(text) => *text = one_line(text, characters),
        Value::Array(list) => {
            list.truncate(entries);
            list.iter_mut().for_each(|entry| bound(name, entry));
        }
        Value::Object(all) => all.iter_mut().for_each(|(name, entry)| bound(name, entry)),
        _ => {}
    }
}

fn how_ended(status: i32) -> String {
    match status {
        0 => "killed or ended with status 0".to_owned(),
        status => format!("status {status}"),
    }
}

pub fn keep<T>(list: &mut Vec<T>, entry: T) {
    if list.len() < MOST {
        list.push(entry);
    }
}

impl Observations {
    /// What the user's process wrote, bounded and printable; `None`: not readable.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let line = bytes.split(|byte| *byte == b'\n').next()?;
        let mut all: Value = serde_json::from_slice(line).ok()?;
        bound("", &mut all);
        // By its text: `from_value` would add a second parser of each type to every program.
        let mut all: Self = serde_json::from_slice(all.to_string().as_bytes()).ok()?;
        all.usage.iter_mut().for_each(Usage::cap);
        Some(all)
    }

    pub fn line(&self) -> String {
        serde_json::to_string(self).map_or_else(|_| String::new(), |text| text + "\n")
    }

    /// The observations in words, the clients first.
    pub fn lines(&self, gpus: &[RecordGpu]) -> Vec<String> {
        fn each<T: ToString>(list: &[T]) -> impl Iterator<Item = String> {
            list.iter().map(ToString::to_string)
        }
        let checked = |gpu: &RecordGpu| {
            let index = gpu.index;
            let Some(known) = self.gpus.iter().find(|known| known.uuid == gpu.uuid) else {
                return format!("GPU {index}: no client at any look");
            };
            let (clients, mib) = (count(known.most_clients, "client"), known.most_memory_mib);
            format!("GPU {index}: at most {clients} and {mib} MiB at a look")
        };
        // Clients that end within a second are never looked at.
        let looked_at = gpus.iter().filter(|_| !self.gpus.is_empty());
        let fatal = |pid: &i32| format!("client {pid} caused a fatal GPU error");
        let outside = |pid: &i32| format!("process {pid} computed outside the job's MPS");
        let mut lines = vec![match self.had_none() {
            true => NONE.to_owned(),
            false => {
                let all = count(self.clients, "client");
                format!("{all}, {} at once", self.most_clients)
            }
        }];
        lines.extend(looked_at.map(checked));
        lines.extend(each(&self.refused).chain(each(&self.killed)));
        lines.extend(each(&self.servers_lost).chain(each(&self.daemons_lost)));
        lines.extend(self.fatal.iter().map(fatal));
        lines.extend(self.outside.iter().map(outside));
        lines.extend(each(&self.over_memory));
        lines
    }

    /// No client came, and nothing else shows that one tried.
    pub fn had_none(&self) -> bool {
        self.clients == 0
            && self.refused.is_empty()
            && self.fatal.is_empty()
            && self.daemons_lost.is_empty()
    }

    /// `8 clients at once, GPU 92 % busy`. The driver does not tell a shared MPS's jobs apart.
    pub fn summary(&self, gpus: &[RecordGpu], shared: bool) -> String {
        let clients = match self.had_none() {
            true => NONE.to_owned(),
            false => format!("{} at once", count(self.most_clients, "client")),
        };
        let none = self.refused.len();
        let none = (none > 0).then(|| format!("{none} got no context"));
        let of_all = shared.then(|| "in all jobs that share its MPS".to_owned());
        let all = [Some(clients), none, of_all].into_iter().flatten();
        let all: Vec<String> = all.chain(self.busy(gpus, shared)).collect();
        all.join(", ")
    }

    /// `GPU 92 % busy` for each GPU with counters. Those of a shared MPS are of all its jobs.
    pub fn busy(&self, gpus: &[RecordGpu], shared: bool) -> impl Iterator<Item = String> {
        let busy = move |gpu: &RecordGpu| {
            let percent = self.usage.as_ref()?.of(&gpu.uuid)?.used_percent()?;
            let number = (gpus.len() > 1).then(|| format!(" {}", gpu.index));
            let number = number.unwrap_or_default();
            Some(format!("GPU{number} {percent} % busy"))
        };
        gpus.iter().filter(move |_| !shared).filter_map(busy)
    }

    /// What was seen since a job began to share its MPS. The highest numbers stay, even older ones.
    pub fn since(mut self, before: &Self) -> Self {
        fn later<T>(list: &mut Vec<T>, before: &[T]) {
            list.drain(..before.len().min(list.len()));
        }
        if self.mpsd != before.mpsd {
            return self;
        }
        self.clients = self.clients.saturating_sub(before.clients);
        later(&mut self.refused, &before.refused);
        later(&mut self.killed, &before.killed);
        later(&mut self.servers_lost, &before.servers_lost);
        later(&mut self.daemons_lost, &before.daemons_lost);
        later(&mut self.fatal, &before.fatal);
        later(&mut self.over_memory, &before.over_memory);
        later(&mut self.outside, &before.outside);
        later(&mut self.last_words, &before.last_words);
        self
    }

    pub fn and(mut self, other: Self) -> Self {
        // A user may have forged them.
        self.clients = self.clients.saturating_add(other.clients);
        self.most_clients = self.most_clients.saturating_add(other.most_clients);
        self.pids.extend(other.pids);
        self.gpus.extend(other.gpus);
        self.jobs.extend(other.jobs);
        self.refused.extend(other.refused);
        self.killed.extend(other.killed);
        self.servers_lost.extend(other.servers_lost);
        self.daemons_lost.extend(other.daemons_lost);
        self.fatal.extend(other.fatal);
        self.outside.extend(other.outside);
        self.over_memory.extend(other.over_memory);
        self.last_words.extend(other.last_words);
        self.usage = self.usage.or(other.usage);
        self
    }

    pub fn of_job(&self, job: &JobId, gpu: &GpuUuid) -> Option<&JobMemory> {
        let is_its = |known: &&JobMemory| known.job == job.whole() && known.gpu == *gpu;
        self.jobs.iter().find(is_its)
    }

    pub fn enter(&mut self, pid: i32, now: u64) {
        self.clients += 1;
        self.most_clients = self.most_clients.max(now);
        self.pids
            .drain(..(self.pids.len() + 1).saturating_sub(MOST_PIDS));
        self.pids.push(pid);
    }

    pub fn is_client(&self, pid: i32) -> bool {
        self.pids.contains(&pid) || self.killed.iter().any(|killed| killed.pid == pid)
    }

    /// Adds a check of a job's clients. The oldest makes room.
    pub fn take_job(&mut self, job: &JobId, gpu: &GpuUuid, [held_mib, limit_mib]: [u64; 2]) {
        let known = self.of_job(job, gpu).map_or(0, |known| known.held_mib);
        self.jobs.retain(|one| one.job != *job || one.gpu != *gpu);
        let too_many = (self.jobs.len() + 1).saturating_sub(MOST_JOBS);
        self.jobs.drain(..too_many);
        self.jobs.push(JobMemory {
            job: job.clone(),
            gpu: gpu.clone(),
            held_mib: held_mib.max(known),
            limit_mib,
        });
    }

    /// Adds a look at a GPU: the memory that each of its clients holds, MiB.
    pub fn take_memory(&mut self, gpu: &GpuUuid, clients: &[u64]) {
        let now = GpuObservations {
            uuid: gpu.clone(),
            most_clients: clients.len() as u64,
            most_memory_mib: clients.iter().sum(),
            most_client_mib: clients.iter().copied().max().unwrap_or(0),
        };
        match self.gpus.iter_mut().find(|known| known.uuid == *gpu) {
            Some(known) => {
                known.most_clients = known.most_clients.max(now.most_clients);
                known.most_memory_mib = known.most_memory_mib.max(now.most_memory_mib);
                known.most_client_mib = known.most_client_mib.max(now.most_client_mib);
            }
            None => self.gpus.push(now),
        }
    }
}

#[cfg(test)]
#[path = "observations_tests.rs"]
mod tests;
