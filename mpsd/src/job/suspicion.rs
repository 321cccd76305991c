//! What the vendor's driver held once. It is evidence only if the driver holds it a minute later; between the two looks the
//! node takes no job with MPS ([`super::evidence`] judges).

use super::case::Job;
use super::journal::{Journal, ProcessRef};
use mpsd_core::{JobId, Scheduler};

/// Time between the two looks. Seconds. `mpsd-look-again.timer` brings the second one about then.
pub const PAUSE_S: u64 = 60;

/// What the driver held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Suspect {
    /// A process of a job's MPS that root started or proved, after SIGKILL.
    Process(ProcessRef),
    /// Root's own process that asks NVML, which gave no answer in its time.
    Nvml,
}

/// One look that was not good.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Suspicion {
    /// What the driver held.
    pub suspect: Suspect,
    /// The same as a reason names it: `mps-server 691`.
    pub what: String,
    /// When it was seen. Seconds since the boot.
    pub since: u64,
    /// At which job.
    #[serde(flatten)]
    pub at: At,
}

/// The job at whose begin or end something was seen, and how its node is drained.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct At {
    /// The job.
    pub job: JobId,
    /// Who schedules the node.
    pub scheduler: Scheduler,
    /// The node's name there.
    pub node: String,
    /// The job's user.
    pub uid: u32,
    /// What a drain's reason begins with; `None`: the site drains nothing.
    pub prefix: Option<String>,
    /// `SLURM_CONF`, where one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_conf: Option<String>,
    /// The job's GPUs.
    pub gpus: Vec<String>,
}

impl At {
    /// At the end of the job of `journal`.
    pub fn end(journal: &Journal) -> Self {
        Self {
            job: journal.job.clone(),
            scheduler: journal.scheduler,
            node: journal.node.clone(),
            uid: journal.uid,
            prefix: journal.drain.enabled.then(|| journal.drain.prefix.clone()),
            slurm_conf: journal.drain.slurm_conf.clone(),
            gpus: journal.gpu_names(),
        }
    }

    /// At the begin of `job`.
    pub fn begin(job: &Job) -> Self {
        let drain = &job.settings.drain;
        Self {
            job: job.asked.submission.job.clone(),
            scheduler: job.asked.submission.scheduler,
            node: job.node.clone(),
            uid: job.user.uid,
            prefix: drain.enabled.then(|| drain.prefix.clone()),
            slurm_conf: job.site.slurm_conf.clone(),
            gpus: Vec::new(),
        }
    }
}
