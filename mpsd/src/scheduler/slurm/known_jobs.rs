//! What a Slurm has on one node: one answer of `squeue` covers all its jobs.

use super::commands::Installation;
use crate::scheduler::known_jobs::{JobState, KnownJobs};
use mpsd_core::JobId;
use mpsd_core::text::one_line;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A busy controller gets this for one answer.
const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// Asks `slurm` what it has on `node`.
pub(super) fn ask(slurm: &Installation, node: &str) -> Asked {
    Asked(SlurmNode::ask(slurm, node))
}

/// What it answered, or why it did not.
pub(super) struct Asked(Result<SlurmNode, String>);

impl KnownJobs for Asked {
    fn state_of(&self, job: &JobId) -> JobState {
        match &self.0 {
            Ok(node) => node.state(job),
            Err(why) => JobState::Undecided(why.clone()),
        }
    }
}

/// What Slurm has on one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct SlurmNode {
    jobs: BTreeSet<String>,
    steps: BTreeSet<String>,
}

impl SlurmNode {
    fn ask(slurm: &Installation, node: &str) -> Result<Self, String> {
        let squeue = |arguments: &[&str]| slurm.ask("squeue", arguments, CALL_DEADLINE);
        let jobs = squeue(&["-h", "-w", node, "-o", "%A|%i"])?;
        let steps = squeue(&["-h", "-s", "-w", node, "-o", "%i"])?;
        Self::parse(&jobs, &steps)
    }

    /// `4711|4711` or `4713|4700_2` for each job, `4711.0` or `4700_2.batch` for each step.
    fn parse(jobs: &str, steps: &str) -> Result<Self, String> {
        let mut node = Self::default();
        let mut shown: BTreeMap<&str, &str> = BTreeMap::new();
        for line in words(jobs) {
            let (raw, display) = line.split_once('|').ok_or_else(|| not_understood(line))?;
            if raw.is_empty() || !raw.bytes().all(|b| b.is_ascii_digit()) {
                return Err(not_understood(line));
            }
            node.jobs.insert(raw.to_owned());
            shown.insert(display, raw);
        }
        for line in words(steps) {
            let (job, step) = line.rsplit_once('.').ok_or_else(|| not_understood(line))?;
            // A job that came between the two questions is not known by its display; only a plain number says it all.
            let raw = shown.get(job).copied().unwrap_or(job);
            let step = step.split('+').next().unwrap_or(step);
            node.steps.insert(format!("{raw}.{step}"));
        }
        Ok(node)
    }

    fn state(&self, job: &JobId) -> JobState {
        let id = job.as_str();
        let (whole, is_step) = id.split_once('.').map_or((id, false), |(whole, _)| (whole, true));
        if !self.jobs.contains(whole) {
            JobState::Gone("slurmctld has no such job on this node".to_owned())
        } else if is_step && !self.steps.contains(id) {
            JobState::Gone("slurmctld has no such step on this node".to_owned())
        } else {
            JobState::Here
        }
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

fn not_understood(line: &str) -> String {
    format!("squeue said: {}", one_line(line, 120))
}

#[cfg(test)]
mod tests;
