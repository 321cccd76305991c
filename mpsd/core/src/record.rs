//! The record: what root leaves on the node for the job's tasks to read.
//!
//! `/run/mpsd/jobs/<job>/record`, root 0644. The plugin's `task_init`, `mpsctl env` and `mpsctl exec` decide by it and
//! by nothing else: an option may be lost on the way (`sbatch --export=NONE`; facts: slurm-live, "Options").

use super::failure::FailureKind;
use super::gpu::GpuUuid;
use super::job::JobId;
use super::limits::Percent;
use super::request::Request;
use std::path::PathBuf;

/// Version of the format; a reader refuses any other.
pub const VERSION: u32 = 1;
/// Longest record that a reader takes, bytes.
pub const LONGEST: u64 = 1 << 20;

/// How far the job's MPS is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Being started; a task waits.
    Starting,
    /// Proved ready.
    Ready,
    /// The request was refused; a task says why and does not run.
    Refused,
    /// It did not start; a task says why and does not run.
    Failed,
}

/// A GPU of the job.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RecordGpu {
    /// NVML's index on this node.
    pub index: u32,
    /// Its UUID.
    pub uuid: GpuUuid,
}

/// A control daemon of the job.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RecordDaemon {
    /// Its GPUs.
    pub gpus: Vec<GpuUuid>,
    /// Its pipe directory.
    pub pipe: PathBuf,
    /// Its log directory.
    pub log: PathBuf,
    /// What it gives to each client; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<Percent>,
    /// Its limit for each client, MiB by GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<(GpuUuid, u64)>,
}

/// What the job's tasks need to know.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`VERSION`].
    pub version: u32,
    /// The job, or the step with a daemon of its own.
    pub job: JobId,
    /// The job's user.
    pub uid: u32,
    /// How far it is.
    pub state: State,
    /// One line for the user when refused or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the failure was when `failed`: Slurm's job_prolog fails on a fault only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<FailureKind>,
    /// The job made its GPUs EXCLUSIVE_PROCESS: a process outside its MPS cannot use them.
    #[serde(default)]
    pub exclusive: bool,
    /// Seconds from which a task may still wait while `starting`.
    #[serde(default)]
    pub deadline_s: u32,
    /// One daemon a GPU.
    #[serde(default)]
    pub per_gpu: bool,
    /// What the job asked for: a step that says the same has inherited it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    /// The scheduler named the job's GPUs, so that a step for which it names none has none.
    #[serde(default)]
    pub named: bool,
    /// The job's GPUs on this node.
    #[serde(default)]
    pub gpus: Vec<RecordGpu>,
    /// The daemons.
    #[serde(default)]
    pub daemons: Vec<RecordDaemon>,
    /// Thread percentage by local rank, repeated when there are more ranks; empty: the daemon's.
    #[serde(default)]
    pub rank_threads: Vec<Percent>,
    /// Memory limits by local rank, MiB by GPU; empty: the daemon's.
    #[serde(default)]
    pub rank_memory: Vec<Vec<(GpuUuid, u64)>>,
    /// Write UUIDs into `CUDA_VISIBLE_DEVICES` (a confined daemon renumbers its devices).
    #[serde(default = "yes")]
    pub uuids: bool,
}

fn yes() -> bool {
    true
}

impl Record {
    /// A record that says only that the job is refused or failed.
    pub fn closed(job: JobId, uid: u32, state: State, reason: String) -> Self {
        Self {
            version: VERSION,
            job,
            uid,
            state,
            reason: Some(reason),
            kind: None,
            exclusive: false,
            deadline_s: 0,
            per_gpu: false,
            request: None,
            named: false,
            gpus: Vec::new(),
            daemons: Vec::new(),
            rank_threads: Vec::new(),
            rank_memory: Vec::new(),
            uuids: true,
        }
    }

    /// Reads a record's text.
    ///
    /// # Errors
    /// One line: not JSON of this version.
    pub fn parse(text: &str) -> Result<Self, String> {
        let record: Self = serde_json::from_str(text).map_err(|e| format!("unreadable record: {e}"))?;
        if record.version != VERSION {
            return Err(format!(
                "record of version {}, this program reads {VERSION}",
                record.version
            ));
        }
        Ok(record)
    }

    /// The record's text.
    ///
    /// # Errors
    /// When a path is not UTF-8.
    pub fn to_text(&self) -> Result<String, String> {
        serde_json::to_string_pretty(self)
            .map(|t| t + "\n")
            .map_err(|e| format!("unwritable record: {e}"))
    }
}
