//! Counters of this node's jobs. They only grow, and outlive the reports.

use super::report::JobReport;
use mpsd_core::failure::FailureKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Upper ends of the classes of times. Milliseconds.
pub const CLASSES: [u64; 9] = [50, 100, 250, 500, 1000, 2500, 5000, 10_000, 20_000];

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// How many fell into each of [`CLASSES`], each counted once.
    pub within: [u64; CLASSES.len()],
    pub count: u64,
    pub sum_ms: u64,
}

impl Times {
    fn add(&mut self, ms: u64) {
        if let Some(class) = CLASSES.iter().position(|end| ms <= *end) {
            self.within[class] += 1;
        }
        self.count += 1;
        self.sum_ms = self.sum_ms.saturating_add(ms);
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tally {
    /// Jobs that had an MPS: the ended, and at most those that a run of `mpsctl metrics` saw.
    #[serde(rename = "begun")]
    pub had_mps: u64,
    pub ended: u64,
    #[serde(rename = "left")]
    pub not_as_before: u64,
    /// At their end, for their failed start, or at a second look.
    pub drained: u64,
    pub ready: Times,
    pub teardown: Times,
    pub refusals: u64,
    pub faults: u64,
    pub undetermined: u64,
    /// By the word of their `mpsd`.
    pub server_lost: u64,
    pub daemon_lost: u64,
    pub fatal_client: u64,
    pub refused_client: u64,
    pub over_memory: u64,
    /// Jobs with a GPU that no client used at any look.
    pub idle_gpu: u64,
    pub advised: BTreeMap<String, u64>,
}

impl Tally {
    pub fn end(&mut self, report: &JobReport) {
        self.ended += 1;
        self.not_as_before += u64::from(!report.as_before);
        self.drained += u64::from(report.drained);
        if let Some(ms) = report.ready_ms {
            self.ready.add(ms);
        }
        self.teardown.add(report.teardown_ms);
        if let Some(observed) = &report.said_by_user {
            self.server_lost += u64::from(!observed.servers_lost.is_empty());
            self.daemon_lost += u64::from(!observed.daemons_lost.is_empty());
            self.fatal_client += u64::from(!observed.fatal.is_empty());
            self.refused_client += u64::from(!observed.refused.is_empty());
            self.over_memory += u64::from(!observed.over_memory.is_empty());
        }
        self.idle_gpu += u64::from(report.had_idle_gpu());
        if let Some(advice) = &report.advice {
            *self.advised.entry(advice.rule.clone()).or_default() += 1;
        }
    }

    pub fn failed(&mut self, kind: FailureKind) {
        *match kind {
            FailureKind::Refusal => &mut self.refusals,
            FailureKind::Fault => &mut self.faults,
            FailureKind::Undetermined => &mut self.undetermined,
        } += 1;
    }

    /// `ready` jobs have their MPS now. A job between two looks is counted at its end.
    pub fn look(&mut self, ready: usize) {
        let ready = u64::try_from(ready).unwrap_or(u64::MAX);
        self.had_mps = self.had_mps.max(self.ready.count.saturating_add(ready));
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;
    use mpsd_core::observations::Observations;

    #[test]
    fn a_gpu_that_no_look_found_a_client_on_is_idle() {
        let (mut tally, mut report) = (Tally::default(), report());
        let mut seen = Observations::default();
        seen.take_memory(&report.gpus[0].uuid, &[1]);
        report.said_by_user = Some(seen);
        tally.end(&report);
        assert_eq!(tally.idle_gpu, 0);
        report.gpus.push(report.gpus[0].clone());
        tally.end(&report);
        assert_eq!(tally.idle_gpu, 1);
    }

    #[test]
    fn a_job_that_ends_between_two_looks_takes_nothing_back() {
        let mut tally = Tally::default();
        tally.look(2);
        tally.ready.add(9);
        tally.look(0);
        assert_eq!(tally.had_mps, 2, "one has ended, and its report is to come");
        tally.ready.add(9);
        tally.ready.add(9);
        tally.look(1);
        assert_eq!(tally.had_mps, 4);
    }

    #[test]
    fn a_time_counts_in_the_first_class_that_holds_it_and_the_longest_in_none() {
        let mut times = Times::default();
        for ms in [0, 50, 51, 20_000, 20_001] {
            times.add(ms);
        }
        assert_eq!(times.within, [2, 1, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!((times.count, times.sum_ms), (5, 40_102));
    }
}
