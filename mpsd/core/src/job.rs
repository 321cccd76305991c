//! A job's name, and who schedules it.

use super::failure::Refusal;
use super::gpu::{GpuUuid, MIG};
use super::text::{is_digits, is_word, one_line};
use derive_more::{Display, Into};
use serde::{Deserialize, Serialize};

const LONGEST_ID: usize = 255;
/// Bytes of an id that is its own directory name: longer pipe paths fail
/// (docs/facts/mps-control.md#starting).
const LONGEST_NAME: usize = 40;
/// The same for a shared MPS, which has no more than one daemon: a user id and a GPU's UUID.
const LONGEST_SHARED: usize = 52;
const READABLE_PART: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display, Serialize, Deserialize)]
#[display("{}", self.name())]
#[serde(rename_all = "lowercase")]
pub enum Scheduler {
    Slurm,
    Torque,
    OpenPbs,
}

impl Scheduler {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Slurm => "slurm",
            Self::Torque => "torque",
            Self::OpenPbs => "openpbs",
        }
    }
}

/// A job id as the scheduler wrote it, or `JOB.STEP` for a Slurm step with a daemon of its own.
/// Safe within a path.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Display, Into, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct JobId(String);

impl JobId {
    /// As Slurm's ids are, `4711` or `4711.3`; an id of a PBS has a server's name in it.
    pub fn is_number(&self) -> bool {
        self.0.chars().all(|c| c.is_ascii_digit() || c == '.')
    }

    /// Refuses an empty text, more than 255 bytes, `/`, `..` and control characters.
    pub fn parse(raw: &str) -> Result<Self, Refusal> {
        let has_control = raw.contains(char::is_control);
        let checks = [
            (raw.is_empty(), "it is empty"),
            (raw.len() > LONGEST_ID, "it is longer than 255 bytes"),
            (raw.contains('/'), "it holds '/'"),
            (raw.contains(".."), "it holds '..'"),
            (has_control, "it holds a control character"),
        ];
        let what = format!("job id '{}'", one_line(raw, 60));
        if let Some((_, why)) = checks.into_iter().find(|(is_wrong, _)| *is_wrong) {
            let allowed = "letters, digits, '.', '_', '-' and brackets, as schedulers write them";
            return Err(Refusal::new(what, why, allowed));
        }
        // Slurm shows this form only to users. Its programs get the element's own id.
        let element = raw.split_once('_');
        if element.is_some_and(|(array, number)| is_digits(array) && is_digits(number)) {
            let why = "it is an element of an array, which has an id of its own";
            let allowed = format!(
                "what 'squeue -h -j {raw} -o %A' prints, or later 'sacct -nXj {raw} -o JobIDRaw'"
            );
            return Err(Refusal::new(what, why, allowed));
        }
        Ok(Self(raw.to_owned()))
    }

    /// `1001-GPU-…`: the MPS that a user's jobs share on `gpu`. No scheduler writes such an id.
    pub fn shared(uid: u32, gpu: &GpuUuid) -> Self {
        Self(format!("{uid}-{gpu}"))
    }

    pub fn is_shared(&self) -> bool {
        let is_gpu = |name: &str| name.starts_with("GPU-") || name.starts_with(MIG);
        let ids = self.0.split_once('-');
        ids.is_some_and(|(uid, gpu)| is_digits(uid) && is_gpu(gpu))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id if it is short and plain, else its first 24 safe bytes and a hash.
    pub fn directory_name(&self) -> String {
        let longest = match self.is_shared() {
            true => LONGEST_SHARED,
            false => LONGEST_NAME,
        };
        if self.0.len() <= longest && is_word(&self.0, b"._-[]") && !self.0.starts_with('.') {
            return self.0.clone();
        }
        let is_safe = |c: &char| c.is_ascii_alphanumeric() || "_-[]".contains(*c);
        let head: String = self.0.chars().filter(is_safe).take(READABLE_PART).collect();
        let hash = fnv1a(self.0.as_bytes()) & 0xffff_ffff_ffff;
        format!("{head}-{hash:012x}")
    }

    pub fn step(&self, step: &str) -> Result<Self, Refusal> {
        Self::parse(&format!("{}.{step}", self.0))
    }

    /// The job of this step. A job without a step is its own.
    pub fn whole(&self) -> Self {
        let (job, step) = self.0.rsplit_once('.').unwrap_or((&self.0, ""));
        let whole = is_digits(step).then(|| Self::parse(job).ok()).flatten();
        whole.unwrap_or_else(|| self.clone())
    }

    pub fn belongs_to(&self, job: &Self) -> bool {
        let rest = self.0.strip_prefix(job.as_str());
        let step = rest.and_then(|rest| rest.strip_prefix('.'));
        rest == Some("") || step.is_some_and(is_digits)
    }
}

impl TryFrom<String> for JobId {
    type Error = Refusal;
    fn try_from(raw: String) -> Result<Self, Refusal> {
        Self::parse(&raw)
    }
}

/// FNV-1a: no user can aim at a collision, because the scheduler writes the ids.
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
        let long = "x".repeat(256);
        for raw in ["", "a/b", "..", "4711..srv", "4711\n", "/etc", &long] {
            assert!(JobId::parse(raw).is_err(), "{raw:?}");
        }
        let refused = JobId::parse("90_1").unwrap_err();
        assert!(refused.allowed.contains("-j 90_1"), "{refused}");
        assert!(JobId::parse("90.my_server").is_ok() && JobId::parse("90_1.srv").is_ok());
    }

    #[test]
    fn long_and_odd_ids_are_shortened_without_clashing() {
        let directory = |raw: &str| JobId::parse(raw).unwrap().directory_name();
        for raw in ["4711", "4711.srv", "16[1].vm", "4711.3", "0.localhost"] {
            assert_eq!(directory(raw), raw);
        }
        let name = "123456.a-very-long-server-name.with-a-domain.example";
        let long = |end: &str| directory(&format!("{name}.{end}"));
        assert_eq!(long("org").len(), 24 + 1 + 12);
        assert_ne!(long("org"), long("com"));
        assert!(directory("47 11@x").starts_with("4711x-"));
        assert!(!directory(".hidden").starts_with('.'));
    }

    #[test]
    fn a_step_belongs_to_its_whole_job_only() {
        let table =
            "47>47 47.0>47 47.12>47 471>471 4>4 47.srv>47.srv 47.srv.12>47.srv 47[3].srv>47[3].srv";
        for (id, whole) in table.split(' ').filter_map(|row| row.split_once('>')) {
            let id = JobId::parse(id).unwrap();
            assert_eq!(id.whole().as_str(), whole);
            assert!(id.belongs_to(&id.whole()), "{id}");
            let is_of_47 = id.belongs_to(&JobId::parse("47").unwrap());
            assert_eq!(is_of_47, whole == "47", "{id}");
        }
    }
}
