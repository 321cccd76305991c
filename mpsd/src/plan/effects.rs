//! The plan: every privileged effect for one job, in order, each with its inverse.

use mpsd_core::gpu::{ComputeMode, GpuUuid};
use mpsd_core::record::Record;
use std::fmt;

/// One thing that root does to the node for the job; `job/undo.rs` does the inverse, which copes
/// with an effect that happened in part or not at all.
#[derive(
    Debug, Clone, PartialEq, Eq, derive_more::Display, serde::Serialize, serde::Deserialize,
)]
#[serde(tag = "effect", rename_all = "kebab-case")]
pub enum Effect {
    /// Enter the job into the GPU's account, with the compute mode found.
    #[display("claim {gpu}")]
    ClaimGpu { gpu: GpuUuid },
    #[display("set compute mode of {gpu} to {mode}")]
    SetComputeMode { gpu: GpuUuid, mode: ComputeMode },
    /// The first job that shares the MPS begins it ([`Plan::shared_plans`]).
    #[display("share the user's MPS on {gpu}")]
    JoinShared { gpu: GpuUuid },
    #[display("make the job's cgroup")]
    MakeCgroup,
    /// They are the user's, 0700, each with a bound of room.
    #[display("make pipe and log directory of daemon {daemon}")]
    MakeDirectories { daemon: usize },
    /// The last: `mpsd` starts daemons and servers, and proves every daemon ready.
    #[display("start mpsd as the job's user")]
    #[serde(rename = "start-daemon")] // Journals have this name.
    StartSupervisor,
}

impl Effect {
    pub fn inverse(&self) -> &'static str {
        match self {
            Self::ClaimGpu { .. } => "leave the account, remove it after the last user",
            Self::SetComputeMode { .. } => "restore the mode found, after the last user",
            Self::JoinShared { .. } => {
                "terminate_client for the job's clients, leave; the last job ends the MPS"
            }
            Self::MakeCgroup => "prove it empty, remove it",
            Self::MakeDirectories { .. } => "remove both",
            Self::StartSupervisor => "terminate_client, quit, quit -t, SIGTERM, SIGKILL, proof",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Plan {
    /// What the job's tasks are told while it starts.
    pub record: Record,
    pub effects: Vec<Effect>,
    /// For each GPU whose MPS the job shares: the first job carries it out.
    #[serde(rename = "shared")]
    pub shared_plans: Vec<Plan>,
    /// The minor numbers of its GPUs, each once; empty: the driver does not tell them all.
    pub minors: Vec<u32>,
    pub notes: Vec<String>,
    /// What the request's options add to the printed plan, one line each.
    pub then: Vec<String>,
}

impl Plan {
    pub fn json(&self) -> serde_json::Value {
        let effect = |effect: &Effect| serde_json::json!({"do": effect.to_string(), "undo": effect.inverse()});
        let effects: Vec<_> = self.effects.iter().map(effect).collect();
        let record = &self.record;
        serde_json::json!({
            "job": record.job, "uid": record.uid, "gpus": record.gpus, "daemons": record.daemons,
            "rank_threads": record.rank_threads, "rank_memory": record.rank_memory, "job_memory": record.job_memory, "effects": effects,
            "report": record.report, "then": self.then, "warnings": record.warnings, "notes": self.notes,
        })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = |all: &[(GpuUuid, u64)], before: &str| -> String {
            let one = |(gpu, mib): &(GpuUuid, u64)| format!("{before}{gpu}={mib}M");
            all.iter().map(one).collect()
        };
        let record = &self.record;
        writeln!(f, "job {} uid {}", record.job, record.uid)?;
        for (n, daemon) in record.daemons.iter().enumerate() {
            let gpus: String = daemon.gpus.iter().map(|gpu| format!(" {gpu}")).collect();
            let threads = daemon.threads.map(|threads| format!(" threads {threads}"));
            let priority = daemon
                .priority
                .map(|priority| format!(" priority {priority}"));
            let limits = [threads, Some(memory(&daemon.memory, " memory ")), priority];
            let limits: String = limits.into_iter().flatten().collect();
            writeln!(f, "daemon {n}:{gpus}{limits}")?;
        }
        let of = |rank: usize, list: usize| match list {
            1 => "each task".to_owned(),
            _ => format!("rank {rank}"),
        };
        for (rank, threads) in record.rank_threads.iter().enumerate() {
            let of = of(rank, record.rank_threads.len());
            writeln!(f, "{of}: threads {threads}")?;
        }
        for (rank, all) in record.rank_memory.iter().enumerate() {
            let (of, memory) = (of(rank, record.rank_memory.len()), memory(all, " "));
            writeln!(f, "{of}: memory{memory}")?;
        }
        if !record.job_memory.is_empty() {
            let memory = memory(&record.job_memory, " ");
            writeln!(f, "all clients of the job: memory{memory}")?;
        }
        for (n, effect) in self.effects.iter().enumerate() {
            writeln!(f, "{:2}. {effect}  [undo: {}]", n + 1, effect.inverse())?;
        }
        for line in &self.then {
            writeln!(f, "{line}")?;
        }
        for note in record.warnings.iter().chain(&self.notes) {
            writeln!(f, "note: {note}")?;
        }
        Ok(())
    }
}
