//! A job's name, and who schedules it.

use super::failure::Refusal;
use super::text::one_line;
use derive_more::{Display, Into};

/// Longest job id that a scheduler of ours writes, with room; longer is no job id. Bytes.
const LONGEST_ID: usize = 255;
/// Longest id that is used as a directory name as it is: NVIDIA's daemon fails silently on pipe paths over about
/// 100 bytes (docs/facts/mps-control.md#starting). Bytes.
const LONGEST_NAME: usize = 40;
/// How much of a longer id stays readable in the directory name. Bytes.
const READABLE_PART: usize = 24;

/// The batch system that runs the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display, serde::Serialize, serde::Deserialize)]
#[display("{}", self.name())]
#[serde(rename_all = "lowercase")]
pub enum Scheduler {
    /// Slurm, through the SPANK plugin.
    Slurm,
    /// Torque: prologue, epilogue and their `.parallel` forms.
    Torque,
    /// OpenPBS and PBS Professional: hooks, or the classic scripts.
    OpenPbs,
}

impl Scheduler {
    /// Its name in journals, markers and `--scheduler`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Slurm => "slurm",
            Self::Torque => "torque",
            Self::OpenPbs => "openpbs",
        }
    }
}

/// A job id as the scheduler wrote it, or `JOB.STEP` for a Slurm step with a daemon of its own.
///
/// Cannot hold a path separator, `..` or a control character.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Display, Into, serde::Serialize, serde::Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct JobId(String);

impl JobId {
    /// Checks `raw`.
    ///
    /// # Errors
    /// A refusal when it is empty, longer than 255 bytes, or holds `/`, `..` or a control character.
    pub fn parse(raw: &str) -> Result<Self, Refusal> {
        let why = if raw.is_empty() {
            "it is empty"
        } else if raw.len() > LONGEST_ID {
            "it is longer than 255 bytes"
        } else if raw.contains('/') {
            "it holds '/'"
        } else if raw.contains("..") {
            "it holds '..'"
        } else if raw.chars().any(char::is_control) {
            "it holds a control character"
        } else {
            return Ok(Self(raw.to_owned()));
        };
        let what = format!("job id '{}'", one_line(raw, 60));
        Err(Refusal::new(
            what,
            why,
            "letters, digits, '.', '_', '-' and brackets, as schedulers write them",
        ))
    }

    /// The id as the scheduler wrote it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The directory of this job under `jobs/`: the id itself when it has at most 40 bytes of `[A-Za-z0-9._-]` and
    /// brackets, else its first 24 safe bytes, `-`, and 12 hex digits of its hash.
    pub fn directory_name(&self) -> String {
        let plain = self.0.len() <= LONGEST_NAME && self.0.chars().all(is_safe) && !self.0.starts_with('.');
        if plain {
            return self.0.clone();
        }
        let head: String = self
            .0
            .chars()
            .filter(|c| is_safe(*c) && *c != '.')
            .take(READABLE_PART)
            .collect();
        format!("{head}-{:012x}", fnv1a(self.0.as_bytes()) & 0xffff_ffff_ffff)
    }

    /// The id of a step of this job, as a job of its own (`4711.3`).
    ///
    /// # Errors
    /// As [`JobId::parse`].
    pub fn step(&self, step: &str) -> Result<Self, Refusal> {
        Self::parse(&format!("{}.{step}", self.0))
    }

    /// The job whose step this is, else itself.
    pub fn whole(&self) -> Self {
        let (job, step) = self.0.rsplit_once('.').unwrap_or((&self.0, ""));
        match step.is_empty() || !step.bytes().all(|b| b.is_ascii_digit()) {
            true => self.clone(),
            false => Self::parse(job).unwrap_or_else(|_| self.clone()),
        }
    }

    /// Whether this is `job` or one of its steps.
    pub fn belongs_to(&self, job: &Self) -> bool {
        self.0 == job.0
            || self
                .0
                .strip_prefix(job.as_str())
                .and_then(|rest| rest.strip_prefix('.'))
                .is_some_and(|step| !step.is_empty() && step.bytes().all(|b| b.is_ascii_digit()))
    }
}

impl TryFrom<String> for JobId {
    type Error = Refusal;
    fn try_from(raw: String) -> Result<Self, Refusal> {
        Self::parse(&raw)
    }
}

fn is_safe(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '[' | ']')
}

/// FNV-1a: ids are written by the scheduler, so an even spread is enough and nobody can aim at a collision.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests;
