//! What the job's GPUs do while it has clients, for its report. A look asks the driver, which
//! counts: often at first, so that a short job has figures. No end waits for a look.

use crate::job::spec::Spec;
use crate::node::nvml::{GpuCounters, LookEnd, Nvml};
use mpsd_core::GpuUuid;
use mpsd_core::usage::{BUCKETS, GpuUsage, Usage};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// From the first client to the first look: its context must not wait for our call in the driver.
const FIRST: Duration = Duration::from_secs(1);
/// The driver's buffer of samples is longer (docs/facts/mps-control.md#what-the-driver-counts).
const PERIOD: Duration = Duration::from_secs(10);
const LEAST: Duration = Duration::from_secs(1);
/// A job of fifteen seconds fills the chart.
const SHORTEST_MS: u64 = 250;

#[derive(Debug)]
pub struct UsageWatch {
    gpus: Vec<(GpuUuid, LookEnd)>,
    clients: u64,
    since: Instant,
    next: Option<Instant>,
    last: Option<Instant>,
    recorder: Recorder,
}

impl UsageWatch {
    pub fn new(spec: &Spec) -> Self {
        let mut gpus = spec.gpus();
        gpus.retain(|_| spec.usage);
        Self {
            recorder: Recorder::of(&gpus),
            gpus: gpus
                .into_iter()
                .map(|gpu| (gpu, LookEnd::default()))
                .collect(),
            clients: 0,
            since: Instant::now(),
            next: None,
            last: None,
        }
    }

    pub fn clients(&mut self, clients: u64) {
        if clients == self.clients || self.gpus.is_empty() {
            return;
        }
        let now = Instant::now();
        let least = self.last.map_or(now + FIRST, |last| now.max(last + LEAST));
        if self.clients == 0 && self.next.is_none() {
            // What the GPU did without clients is not counted.
            let since = since_1970().as_micros();
            let since = u64::try_from(since).unwrap_or(u64::MAX);
            let looks = self.gpus.iter_mut().map(|(_, look)| look);
            looks.for_each(|look| *look = LookEnd::at(since));
            (self.since, self.next) = (now, Some(now + FIRST));
        } else if clients == 0 {
            self.next = Some(self.next.map_or(least, |next| next.min(least)));
        }
        self.clients = clients;
        self.recorder.clients(clients, now_ms());
    }

    pub fn period(&self) -> Option<Duration> {
        Some(self.next?.saturating_duration_since(Instant::now()))
    }

    pub fn check(&mut self, nvml: impl FnOnce() -> Option<Nvml>) -> Option<Usage> {
        let now = Instant::now();
        self.next.filter(|next| *next <= now)?;
        let Some(nvml) = nvml() else {
            self.gpus.clear();
            self.next = None;
            return None;
        };
        for (place, (gpu, last)) in self.gpus.iter_mut().enumerate() {
            let known = &mut self.recorder.gpus[place];
            if self.last.is_none() {
                known.usage.memory_mib = nvml.memory_mib(gpu);
            }
            self.recorder.count(place, &nvml.counters(gpu, last));
        }
        self.last = Some(now);
        let period = (now - self.since).clamp(LEAST, PERIOD);
        self.next = (self.clients > 0).then(|| now + period);
        self.recorder.clients(self.clients, now_ms());
        Some(self.recorder.usage())
    }
}

fn since_1970() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

fn now_ms() -> u64 {
    u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX)
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Mean {
    sum: u64,
    weight: u64,
}

impl Mean {
    fn add(&mut self, value: u64, weight: u64) {
        self.sum = self.sum.saturating_add(value.saturating_mul(weight));
        self.weight = self.weight.saturating_add(weight);
    }

    fn percent(self) -> Option<u8> {
        let rounded = (self.sum + self.weight / 2).checked_div(self.weight)?;
        u8::try_from(rounded).ok()
    }
}

#[derive(Debug)]
struct GpuTotals {
    usage: GpuUsage,
    buckets: Vec<Mean>,
    busy: Mean,
    memory_busy: Mean,
    /// Of thousandths.
    sm: Mean,
    bandwidth: Mean,
}

/// A bounded series: when its buckets are full, two become one.
#[derive(Debug, Default)]
struct Recorder {
    began_ms: Option<u64>,
    step_ms: u64,
    now: u64,
    clients: Vec<u64>,
    gpus: Vec<GpuTotals>,
}

impl Recorder {
    fn of(gpus: &[GpuUuid]) -> Self {
        let totals = |gpu: &GpuUuid| GpuTotals {
            usage: GpuUsage::new(gpu.clone()),
            buckets: Vec::new(),
            busy: Mean::default(),
            memory_busy: Mean::default(),
            sm: Mean::default(),
            bandwidth: Mean::default(),
        };
        Self {
            step_ms: SHORTEST_MS,
            gpus: gpus.iter().map(totals).collect(),
            ..Self::default()
        }
    }

    fn bucket(&mut self, at_ms: u64) -> usize {
        let passed = at_ms.saturating_sub(*self.began_ms.get_or_insert(at_ms));
        while passed / self.step_ms >= BUCKETS as u64 {
            self.step_ms *= 2;
            let most = |pair: &[u64]| pair.iter().copied().max().unwrap_or(0);
            self.clients = self.clients.chunks(2).map(most).collect();
            for gpu in &mut self.gpus {
                let joined = |pair: &[Mean]| Mean {
                    sum: pair.iter().map(|mean| mean.sum).sum(),
                    weight: pair.iter().map(|mean| mean.weight).sum(),
                };
                gpu.buckets = gpu.buckets.chunks(2).map(joined).collect();
            }
        }
        usize::try_from(passed / self.step_ms).unwrap_or(BUCKETS - 1)
    }

    fn clients(&mut self, clients: u64, at_ms: u64) {
        let bucket = self.bucket(at_ms);
        while self.clients.len() <= bucket {
            self.clients.push(self.now);
        }
        self.clients[bucket] = self.clients[bucket].max(clients);
        self.now = clients;
    }

    fn count(&mut self, gpu: usize, counted: &GpuCounters) {
        for (at_us, percent) in &counted.busy {
            let bucket = self.bucket(at_us / 1000);
            let gpu = &mut self.gpus[gpu];
            if gpu.buckets.len() <= bucket {
                gpu.buckets.resize(bucket + 1, Mean::default());
            }
            gpu.buckets[bucket].add(*percent, 1);
            gpu.busy.add(*percent, 1);
        }
        let gpu = &mut self.gpus[gpu];
        for (_, percent) in &counted.memory_busy {
            gpu.memory_busy.add(*percent, 1);
        }
        if let Some((sm, bandwidth)) = counted.shares {
            gpu.sm.add(thousandths(sm), counted.since_ms);
            gpu.bandwidth.add(thousandths(bandwidth), counted.since_ms);
        }
        if let Some(energy) = counted.energy_mj {
            *gpu.usage.energy_mj.get_or_insert(0) += energy;
            gpu.usage.energy_ms += counted.since_ms;
        }
    }

    fn usage(&self) -> Usage {
        let gpus = self.gpus.iter().filter_map(|totals| {
            let whole = |mean: Mean| Mean {
                weight: mean.weight.saturating_mul(1000),
                ..mean
            };
            let usage = GpuUsage {
                busy: totals.buckets.iter().map(|mean| mean.percent()).collect(),
                busy_percent: totals.busy.percent(),
                samples: totals.busy.weight,
                memory_busy_percent: totals.memory_busy.percent(),
                sm_percent: whole(totals.sm).percent(),
                bandwidth_percent: whole(totals.bandwidth).percent(),
                ..totals.usage.clone()
            };
            let is_counted = usage.used_percent().is_some() || usage.energy_mj.is_some();
            is_counted.then_some(usage)
        });
        Usage {
            began: self.began_ms.unwrap_or(0) / 1000,
            step_ms: self.step_ms,
            clients: self.clients.clone(),
            gpus: gpus.collect(),
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "0 to 100"
)]
fn thousandths(percent: f64) -> u64 {
    (percent * 1000.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGAN: u64 = 1_700_000_000_000;

    fn recorder() -> Recorder {
        Recorder::of(&[GpuUuid::parse("GPU-01").unwrap()])
    }

    fn busy(samples: &[(u64, u64)]) -> GpuCounters {
        let busy = samples.iter();
        let busy = busy.map(|(ms, percent)| ((BEGAN + ms) * 1000, *percent));
        GpuCounters {
            busy: busy.collect(),
            ..GpuCounters::default()
        }
    }

    #[test]
    fn a_site_that_wants_no_figures_has_no_looks() {
        for usage in [false, true] {
            let daemon = serde_json::json!({"gpus": ["GPU-01"], "pipe": "", "log": ""});
            let spec = serde_json::json!({"job": "1", "uid": 0, "control": "/", "nvml": "", "daemons": [daemon],
                "start_ms": 1, "command_ms": 1, "over_limit": "log", "usage": usage});
            let mut watch = UsageWatch::new(&serde_json::from_value(spec).unwrap());
            watch.clients(1);
            assert_eq!(watch.period().is_some(), usage);
        }
    }

    #[test]
    fn clients_hold_until_the_next_change_and_a_bucket_has_the_most() {
        let mut recorder = recorder();
        for (ms, clients) in [(0, 1), (100, 3), (200, 2), (1100, 0), (2000, 0)] {
            recorder.clients(clients, BEGAN + ms);
        }
        assert_eq!(recorder.usage().clients, [3, 2, 2, 2, 2, 0, 0, 0, 0]);
        assert_eq!(recorder.usage().gpus, [], "nothing was counted");
    }

    #[test]
    fn a_longer_job_has_longer_buckets_and_the_same_means() {
        let mut recorder = recorder();
        recorder.clients(4, BEGAN);
        // 20 % in the first half of a day, and 40 % in the second.
        let samples = (0..8640).map(|n| (n * 10_000, if n < 4320 { 20 } else { 40 }));
        let samples: Vec<_> = samples.collect();
        for some in samples.chunks(60) {
            recorder.count(0, &busy(some));
        }
        recorder.clients(0, BEGAN + 86_400_000);
        let usage = recorder.usage();
        assert_eq!(usage.step_ms, 250 << 13, "34 minutes");
        assert!(usage.clients.len() <= BUCKETS && usage.length_ms() >= 86_400_000);
        let gpu = &usage.gpus[0];
        assert_eq!((gpu.busy_percent, gpu.samples), (Some(30), 8640));
        assert!(gpu.busy.len() <= BUCKETS);
        let ends = (gpu.busy[0], *gpu.busy.last().unwrap());
        assert_eq!(ends, (Some(20), Some(40)));
        assert_eq!(usage.clients[0], 4);
    }

    #[test]
    fn shares_are_weighed_by_time_and_energy_is_summed() {
        let mut recorder = recorder();
        for (sm, energy_mj, since_ms) in [
            (None, None, 0),
            (Some(10.0), Some(3000), 10_000),
            (Some(40.0), Some(900), 5000),
        ] {
            let mut counters = busy(&[]);
            counters.shares = sm.map(|sm| (sm, sm / 10.0));
            (counters.energy_mj, counters.since_ms) = (energy_mj, since_ms);
            recorder.count(0, &counters);
        }
        let gpu = &recorder.usage().gpus[0];
        assert_eq!((gpu.sm_percent, gpu.bandwidth_percent), (Some(20), Some(2)));
        assert_eq!((gpu.energy_mj, gpu.energy_ms), (Some(3900), 15_000));
        assert_eq!(gpu.busy_percent, None, "an absent counter is no zero");
    }

    #[test]
    fn a_clock_that_jumps_makes_no_long_list() {
        let mut recorder = recorder();
        for at in [BEGAN, u64::MAX, 0, BEGAN] {
            recorder.clients(2, at);
            let mut counters = busy(&[]);
            counters.busy.push((at, 7));
            recorder.count(0, &counters);
        }
        let usage = recorder.usage();
        assert!(usage.clients.len() <= BUCKETS && usage.gpus[0].busy.len() <= BUCKETS);
    }
}
