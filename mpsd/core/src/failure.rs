//! The three kinds of failure. There is never a fourth.

use crate::text::one_line;
use serde::{Deserialize, Serialize};

/// Most of an administrator's error that a user is told, characters.
const SHOWN: usize = 160;
/// Exit code of a refusal: PBS aborts the job, Slurm's plugin refuses the step.
pub const EXIT_REFUSED: u8 = 1;
/// Exit code of a fault and of what stays undetermined: the job is requeued.
pub const EXIT_NODE: u8 = 2;

/// The user asked for what cannot be done. The user is told; the node's state stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}{}{allowed}", if allowed.is_empty() { "" } else { "; allowed: " })]
pub struct Refusal {
    /// The token, flag or object that was refused, as the user wrote it (made printable).
    pub what: String,
    pub why: String,
    /// What is allowed instead, or what to do; may be empty.
    pub allowed: String,
}

impl Refusal {
    pub fn new(
        what: impl Into<String>,
        why: impl Into<String>,
        allowed: impl Into<String>,
    ) -> Self {
        let (what, why, allowed) = (what.into(), why.into(), allowed.into());
        Self { what, why, allowed }
    }
}

/// What root has proved. Each kind has a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// The vendor's program or library is missing, not executable, or not root's.
    VendorProgram,
    /// NVML cannot be loaded, does not answer in time, or reports a dead driver.
    Nvml,
    GpuLost,
    /// The driver holds a process of the job's MPS that outlived SIGKILL.
    Survivor,
    /// Root cannot make or read one of our files in a place that only root can write.
    Storage,
    /// An unusable `mpsd.toml`, run_dir or call. The node is misconfigured, not broken.
    Configuration,
}

/// Root's evidence that this node is broken ([`Fault::drains`]) or misconfigured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Fault {
    pub what: String,
    pub why: String,
    pub evidence: Evidence,
}

impl Fault {
    pub fn new(evidence: Evidence, what: impl Into<String>, why: impl Into<String>) -> Self {
        let (what, why) = (what.into(), why.into());
        Self {
            what,
            why,
            evidence,
        }
    }

    /// The fault for the user of a job on `node`, who did not cause an unusable configuration.
    #[must_use]
    pub fn to_user(mut self, node: &str) -> Self {
        if self.evidence == Evidence::Configuration {
            let told =
                format!("MPS is misconfigured on {node} (not your job), tell your administrator");
            self.what = format!("{told}: {}", self.what);
            self.why = one_line(&self.why, SHOWN);
        }
        self
    }

    /// With an unusable configuration other jobs still run well.
    pub fn drains(&self) -> bool {
        self.evidence != Evidence::Configuration
    }
}

/// The cause may be the user or something outside this node: the job is requeued, nothing is
/// drained.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Undetermined {
    pub what: String,
    pub why: String,
    /// A process of the job's own user can have caused it.
    pub by_user: bool,
}

impl Undetermined {
    pub fn new(what: impl Into<String>, why: impl Into<String>) -> Self {
        let (what, why, by_user) = (what.into(), why.into(), false);
        Self { what, why, by_user }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Refusal(#[from] Refusal),
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error(transparent)]
    Undetermined(#[from] Undetermined),
}

impl Failure {
    pub fn may_be_users(&self) -> bool {
        match self {
            Self::Refusal(_) => true,
            Self::Fault(_) => false,
            Self::Undetermined(unknown) => unknown.by_user,
        }
    }

    #[must_use]
    pub fn to_user(self, node: &str) -> Self {
        match self {
            Self::Fault(fault) => fault.to_user(node).into(),
            other => other,
        }
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refusal(_) => EXIT_REFUSED,
            Self::Fault(_) | Self::Undetermined(_) => EXIT_NODE,
        }
    }

    pub fn kind(&self) -> FailureKind {
        match self {
            Self::Refusal(_) => FailureKind::Refusal,
            Self::Fault(_) => FailureKind::Fault,
            Self::Undetermined(_) => FailureKind::Undetermined,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display, Serialize, Deserialize)]
#[display(rename_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum FailureKind {
    Refusal,
    Fault,
    Undetermined,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_mistake_and_a_broken_node_have_different_codes() {
        let refusal = Refusal::new("MPS_THREADS=101", "not a percentage", "1 to 100");
        let refusal = Failure::from(refusal);
        assert_eq!(refusal.exit_code(), 1);
        let line = "MPS_THREADS=101: not a percentage; allowed: 1 to 100";
        assert_eq!(refusal.to_string(), line);
        let fault = Failure::from(Fault::new(Evidence::Nvml, "NVML", "no answer within 5 s"));
        assert_eq!(fault.exit_code(), 2);
        let killed = Failure::from(Undetermined::new("mpsd", "killed"));
        assert_eq!(killed.exit_code(), 2);
    }

    #[test]
    fn a_bad_configuration_does_not_drain_and_blames_no_user() {
        assert!(Fault::new(Evidence::Survivor, "mps-server 691", "state D").drains());
        let broken = Fault::new(Evidence::Configuration, "mpsd.toml:1:1", "unknown key");
        assert!(!broken.drains());
        let told = "MPS is misconfigured on n1 (not your job), tell your administrator: mpsd.toml:1:1: unknown key";
        assert_eq!(broken.to_user("n1").to_string(), told);
        let dead = Fault::new(Evidence::Nvml, "NVML", "dead");
        assert_eq!(dead.to_user("n1").to_string(), "NVML: dead");
    }
}
