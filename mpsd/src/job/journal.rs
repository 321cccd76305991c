//! The journal: the plan, and how much of it was begun.

use super::drain_target::{DrainTarget, drain_prefix};
use super::prepared::Job;
use crate::plan::effects::{Effect, Plan};
use mpsd_core::config::LeftoverClients;
use mpsd_core::record::{Record, version_of};
use mpsd_core::{GpuUuid, JobId, Scheduler};
use mpsd_sys::now;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// A newer program reads every older version; an older one leaves a newer journal alone, and
/// drains.
pub const VERSION: u32 = 1;

/// A process by pid and start time; a file by device and inode.
pub use mpsd_sys::process::{FileRef, ProcessId as ProcessRef};

#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Programs {
    pub mpsd: Option<FileRef>,
    pub control: Option<FileRef>,
    pub server: Option<FileRef>,
}

/// `/run/mpsd/jobs/<job>/journal`, root 0600. It is enough to undo all but an unjournaled cgroup.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Journal {
    pub version: u32,
    pub scheduler: Scheduler,
    pub node: String,
    pub user: String,
    pub gid: u32,
    /// Later states of its record are in the record's own file alone.
    pub plan: Plan,
    /// How many effects were begun; the last may have happened in part or not at all.
    #[serde(rename = "begun")]
    pub effects_begun: usize,
    pub control: PathBuf,
    pub nvml: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supervisor: Option<ProcessRef>,
    /// As root has proved them: each control daemon, and behind it its server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proved: Vec<ProcessRef>,
    /// Root's process that starts the MPS, or watches the start; the job's end ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starter: Option<ProcessRef>,
    /// As they were when the job began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programs: Option<Programs>,
    /// `None` if the site drains nothing. The epilogue may run with the configuration gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_prefix: Option<String>,
    /// As mpsd.toml says, else `SLURM_CONF`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_conf: Option<String>,
    /// SIGKILL a client that stays on its GPU, if root proves that it is the job's.
    pub kill_clients: bool,
    /// Seconds since 1970.
    #[serde(rename = "began")]
    pub began_at: u64,
    /// From before the plan until its MPS was proved ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_ms: Option<u64>,
    /// Those of a shared MPS when it was seen to hang or was taken down.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub sharers: BTreeSet<JobId>,
    /// The time to end a shared MPS.
    #[serde(skip)]
    pub ladder: Option<Duration>,
    /// It was taken down, and something of it is still here.
    #[serde(rename = "left", default, skip_serializing_if = "std::ops::Not::not")]
    pub has_remains: bool,
}

impl Journal {
    pub fn record(&self) -> &Record {
        &self.plan.record
    }

    /// The job, the step with a daemon of its own, or the shared MPS.
    pub fn job(&self) -> &JobId {
        &self.record().job
    }

    pub fn uid(&self) -> u32 {
        self.record().uid
    }

    pub fn new(job: &Job, plan: Plan) -> Self {
        let settings = &job.settings;
        Self {
            version: VERSION,
            scheduler: job.submission.scheduler,
            node: job.node.clone(),
            user: job.user.name.clone(),
            gid: job.user.gid,
            plan,
            effects_begun: 0,
            control: settings.control.clone(),
            nvml: settings.nvml.clone(),
            cgroup: None,
            supervisor: None,
            proved: Vec::new(),
            starter: None,
            programs: None,
            drain_prefix: drain_prefix(settings),
            slurm_conf: job.location.slurm_conf.clone(),
            kill_clients: settings.leftover_clients == LeftoverClients::Kill,
            began_at: now(),
            ready_ms: None,
            sharers: BTreeSet::new(),
            ladder: None,
            has_remains: false,
        }
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        let unreadable = |e| format!("not a journal: {e}");
        let format = version_of(text).map_err(unreadable)?;
        if format > VERSION {
            return Err(format!(
                "written by a newer release (format {format}, this one reads {VERSION})"
            ));
        }
        serde_json::from_slice(text.as_bytes()).map_err(unreadable)
    }

    /// Fails if a path is not UTF-8.
    pub fn to_text(&self) -> Result<String, String> {
        let text = serde_json::to_string_pretty(self);
        text.map(|text| text + "\n").map_err(|e| e.to_string())
    }

    /// The effects that were begun, last first: what is to be undone.
    pub fn to_undo(&self) -> impl Iterator<Item = &Effect> {
        let effects = &self.plan.effects;
        effects.iter().take(self.effects_begun).rev()
    }

    pub fn joined_gpus(&self) -> impl Iterator<Item = &GpuUuid> {
        self.to_undo().filter_map(|effect| match effect {
            Effect::JoinShared { gpu } => Some(gpu),
            _ => None,
        })
    }

    pub fn gpu_uuids(&self) -> Vec<GpuUuid> {
        self.record().gpu_uuids()
    }

    pub fn gpu_names(&self) -> Vec<String> {
        self.gpu_uuids().into_iter().map(Into::into).collect()
    }

    pub fn drain_target(&self) -> DrainTarget {
        DrainTarget {
            job: self.job().clone(),
            sharers: self.sharers.clone(),
            scheduler: self.scheduler,
            node: self.node.clone(),
            uid: self.uid(),
            prefix: self.drain_prefix.clone(),
            slurm_conf: self.slurm_conf.clone(),
            gpus: self.gpu_names(),
        }
    }

    pub fn has_begun(&self, effect: &Effect) -> bool {
        self.to_undo().any(|begun| begun == effect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job under Torque in this format. A released file is never changed. A format that differs
    /// gets a new number, and this one stays readable.
    const RECORDED: &str = include_str!("recorded/journal-1.json");

    #[test]
    fn a_recorded_job_can_be_undone_and_is_written_as_it_was() {
        let journal = Journal::parse(RECORDED).unwrap();
        let undo: Vec<String> = journal.to_undo().map(ToString::to_string).collect();
        assert_eq!(undo.len(), 5, "{undo:?}");
        assert!(undo[4].starts_with("claim GPU-85e8a6f0"), "{undo:?}");
        let rule = "a further field is optional and not written by default; another format needs \
                    a new number and recording";
        assert_eq!(journal.to_text().unwrap(), RECORDED, "{rule}");
    }

    #[test]
    fn a_journal_of_a_newer_release_is_left_alone() {
        let newer = RECORDED.replacen("\"version\": 1", "\"version\": 2", 1);
        let why = Journal::parse(&newer).unwrap_err();
        assert!(why.contains("newer release"), "{why}");
    }
}
