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
mod tests {
    use super::*;

    #[test]
    fn ids_that_would_leave_the_directory_are_refused() {
        for raw in ["", "a/b", "..", "4711..srv", "4711\n", "/etc", &"x".repeat(256)] {
            assert!(JobId::parse(raw).is_err(), "{raw:?}");
        }
    }

    #[test]
    fn usual_ids_name_their_own_directory() {
        for raw in ["4711", "4711.srv", "16[1].vm", "4711.3", "0.localhost"] {
            assert_eq!(JobId::parse(raw).unwrap().directory_name(), raw);
        }
    }

    #[test]
    fn long_and_odd_ids_are_shortened_without_clashing() {
        let a = JobId::parse("123456.a-very-long-server-name.with-a-domain.example.org").unwrap();
        let b = JobId::parse("123456.a-very-long-server-name.with-a-domain.example.com").unwrap();
        assert_eq!(a.directory_name().len(), 24 + 1 + 12);
        assert_ne!(a.directory_name(), b.directory_name());
        assert!(
            JobId::parse("47 11@x")
                .unwrap()
                .directory_name()
                .starts_with("4711x-")
        );
        assert!(!JobId::parse(".hidden").unwrap().directory_name().starts_with('.'));
    }

    #[test]
    fn steps_belong_to_their_job_only() {
        let job = JobId::parse("47").unwrap();
        for (id, yes) in [
            ("47", true),
            ("47.0", true),
            ("47.12", true),
            ("471", false),
            ("47.srv", false),
            ("4", false),
        ] {
            assert_eq!(JobId::parse(id).unwrap().belongs_to(&job), yes, "{id}");
        }
    }

    #[test]
    fn a_step_has_its_whole_job() {
        for (id, whole) in [
            ("47.3", "47"),
            ("47", "47"),
            ("47.srv", "47.srv"),
            ("47.srv.12", "47.srv"),
            ("47[3].srv", "47[3].srv"),
        ] {
            let id = JobId::parse(id).unwrap();
            assert_eq!(id.whole().as_str(), whole);
            assert!(id.belongs_to(&id.whole()), "{id}");
        }
    }
}
