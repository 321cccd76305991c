//! What a job's GPUs did while it had MPS clients, by the driver's own counters. Part of
//! [`super::observations`]: the user's word, bounded. What the driver does not count is absent, and
//! never a guess.

use super::gpu::GpuUuid;
use serde::{Deserialize, Serialize};

/// Most buckets of a list. A longer job has longer buckets.
pub const BUCKETS: usize = 60;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// When the first client came, seconds since 1970.
    pub began: u64,
    pub step_ms: u64,
    /// The most clients at once, by bucket.
    pub clients: Vec<u64>,
    pub gpus: Vec<GpuUsage>,
}

/// A GPU while the job had clients. The counters are of the whole GPU, with all jobs that used it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuUsage {
    pub uuid: GpuUuid,
    pub memory_mib: Option<u64>,
    /// Percent of each bucket with a kernel (`NVML_GPU_UTILIZATION_SAMPLES`); `None`: no sample.
    #[serde(default)]
    pub busy: Vec<Option<u8>>,
    pub busy_percent: Option<u8>,
    #[serde(default)]
    pub samples: u64,
    /// Mean percent of the time in which its memory was used (`NVML_MEMORY_UTILIZATION_SAMPLES`).
    pub memory_busy_percent: Option<u8>,
    /// Mean percent of multiprocessors with work (`NVML_GPM_METRIC_SM_UTIL`; from Hopper on).
    pub sm_percent: Option<u8>,
    /// Mean percent of the memory's bandwidth (`NVML_GPM_METRIC_DRAM_BW_UTIL`; from Hopper on).
    pub bandwidth_percent: Option<u8>,
    /// Millijoules (`nvmlDeviceGetTotalEnergyConsumption`).
    pub energy_mj: Option<u64>,
    #[serde(default)]
    pub energy_ms: u64,
}

impl GpuUsage {
    pub fn new(uuid: GpuUuid) -> Self {
        Self {
            uuid,
            memory_mib: None,
            busy: Vec::new(),
            busy_percent: None,
            samples: 0,
            memory_busy_percent: None,
            sm_percent: None,
            bandwidth_percent: None,
            energy_mj: None,
            energy_ms: 0,
        }
    }

    /// Of its multiprocessors if the driver counts them, else of the time.
    pub fn used_percent(&self) -> Option<u8> {
        self.sm_percent.or(self.busy_percent)
    }

    pub fn watts(&self) -> Option<u64> {
        self.energy_mj?.checked_div(self.energy_ms)
    }
}

impl Usage {
    pub fn of(&self, gpu: &GpuUuid) -> Option<&GpuUsage> {
        self.gpus.iter().find(|known| known.uuid == *gpu)
    }

    pub fn length_ms(&self) -> u64 {
        self.step_ms.saturating_mul(self.clients.len() as u64)
    }

    /// Makes a user's word plausible: no percentage is above 100.
    pub(crate) fn cap(&mut self) {
        let cap = |percent: &mut u8| *percent = (*percent).min(100);
        for gpu in &mut self.gpus {
            gpu.busy.iter_mut().flatten().for_each(cap);
            let means = [
                &mut gpu.busy_percent,
                &mut gpu.memory_busy_percent,
                &mut gpu.sm_percent,
                &mut gpu.bandwidth_percent,
            ];
            means.into_iter().flatten().for_each(cap);
        }
    }
}
