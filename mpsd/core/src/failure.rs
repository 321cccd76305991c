//! What can go wrong has three names, three types, and never a fourth.

use crate::text::one_line;

/// Most of an administrator's error that a user is told. Characters.
const SHOWN: usize = 160;
/// Exit code of a refusal: PBS aborts the job, Slurm's plugin refuses the step.
pub const EXIT_REFUSED: u8 = 1;
/// Exit code of a fault and of what stays undetermined: the job is requeued.
pub const EXIT_NODE: u8 = 2;

/// The user asked for something that cannot be done. Told to the user; never touches the node's state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", sentence(what, why, allowed))]
pub struct Refusal {
    /// The token, flag or object that was refused, as the user wrote it (made printable).
    pub what: String,
    /// Why it was refused.
    pub why: String,
    /// What is allowed instead, or what to do; may be empty.
    pub allowed: String,
}

impl Refusal {
    /// A refusal of `what`, because of `why`; `allowed` tells the way out.
    pub fn new(what: impl Into<String>, why: impl Into<String>, allowed: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            why: why.into(),
            allowed: allowed.into(),
        }
    }
}

fn sentence(what: &str, why: &str, allowed: &str) -> String {
    if allowed.is_empty() {
        format!("{what}: {why}")
    } else {
        format!("{what}: {why}; allowed: {allowed}")
    }
}

/// What root saw that proves a node broken. Each kind has a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// The vendor's program or library is missing, not executable, or not root's.
    VendorProgram,
    /// NVML cannot be loaded, does not answer within its deadline, or reports a dead driver.
    Nvml,
    /// A GPU of the job is gone or lost.
    GpuLost,
    /// A process of ours survives SIGKILL.
    Survivor,
    /// Starts fail for two or more users within the window.
    RepeatedStarts,
    /// A file or directory of ours cannot be made in a place that only root can write.
    Storage,
    /// Our own configuration is unusable.
    Configuration,
}

/// This node is broken, on evidence that root gathered. Drains.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Fault {
    /// The object that is broken.
    pub what: String,
    /// What was seen.
    pub why: String,
    /// The kind of evidence.
    pub evidence: Evidence,
}

impl Fault {
    /// A fault of `what`, on `evidence`, seen as `why`.
    pub fn new(evidence: Evidence, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            why: why.into(),
            evidence,
        }
    }

    /// The same as the user of a job on `node` reads it: an unusable configuration is none of his doing.
    #[must_use]
    pub fn to_user(mut self, node: &str) -> Self {
        if self.evidence == Evidence::Configuration {
            let what = &self.what;
            self.what =
                format!("MPS is misconfigured on {node} (not your job), tell your administrator: {what}");
            self.why = one_line(&self.why, SHOWN);
        }
        self
    }

    /// Whether this kind of evidence takes the node out of service. An unusable configuration stops MPS jobs
    /// on the node but is the admin's to mend: other jobs run well, so it does not drain.
    pub fn drains(&self) -> bool {
        self.evidence != Evidence::Configuration
    }
}

/// It did not work, and the user's own processes could be the cause, or something outside this node timed out.
/// Requeue, log, no drain: else any user could drain the cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Undetermined {
    /// The step that did not work.
    pub what: String,
    /// What is known of the cause.
    pub why: String,
    /// A process of the job's own user was there that can have caused it.
    pub by_user: bool,
}

impl Undetermined {
    /// `what` did not work; `why` is what is known.
    pub fn new(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            why: why.into(),
            by_user: false,
        }
    }
}

/// One of the three.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The user's mistake.
    #[error(transparent)]
    Refusal(#[from] Refusal),
    /// The node's.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// Nobody knows whose.
    #[error(transparent)]
    Undetermined(#[from] Undetermined),
}

impl Failure {
    /// Whether the job's own user can have caused it.
    pub fn may_be_users(&self) -> bool {
        match self {
            Self::Refusal(_) => true,
            Self::Fault(_) => false,
            Self::Undetermined(unknown) => unknown.by_user,
        }
    }

    /// The prologue's exit code for this failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refusal(_) => EXIT_REFUSED,
            Self::Fault(_) | Self::Undetermined(_) => EXIT_NODE,
        }
    }

    /// The word that logs and records use.
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::Refusal(_) => FailureKind::Refusal,
            Self::Fault(_) => FailureKind::Fault,
            Self::Undetermined(_) => FailureKind::Undetermined,
        }
    }
}

/// The name of a failure alone, for records and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display, serde::Serialize, serde::Deserialize)]
#[display(rename_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum FailureKind {
    /// See [`Refusal`].
    Refusal,
    /// See [`Fault`].
    Fault,
    /// See [`Undetermined`].
    Undetermined,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_mistake_and_a_broken_node_have_different_codes() {
        let refusal = Failure::from(Refusal::new("MPS_THREADS=101", "not a percentage", "1 to 100"));
        assert_eq!(refusal.exit_code(), 1);
        assert_eq!(
            refusal.to_string(),
            "MPS_THREADS=101: not a percentage; allowed: 1 to 100"
        );
        let fault = Failure::from(Fault::new(Evidence::Nvml, "NVML", "no answer within 5 s"));
        assert_eq!(fault.exit_code(), 2);
        assert_eq!(Failure::from(Undetermined::new("mpsd", "killed")).exit_code(), 2);
    }

    #[test]
    fn a_bad_configuration_does_not_drain() {
        assert!(!Fault::new(Evidence::Configuration, "f", "unknown key").drains());
        assert!(Fault::new(Evidence::Survivor, "mps-server 691", "state D").drains());
    }

    #[test]
    fn a_user_reads_that_a_broken_configuration_is_not_his() {
        let broken = Fault::new(Evidence::Configuration, "mpsd.toml:1:1", "unknown key");
        let told =
            "MPS is misconfigured on n1 (not your job), tell your administrator: mpsd.toml:1:1: unknown key";
        assert_eq!(broken.to_user("n1").to_string(), told);
        assert_eq!(
            Fault::new(Evidence::Nvml, "NVML", "dead")
                .to_user("n1")
                .to_string(),
            "NVML: dead"
        );
    }
}
