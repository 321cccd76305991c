//! What the tests of this crate and of those above it share.
#![allow(clippy::unwrap_used)]

use crate::gpu::{Gpu, GpuUuid, Mig};
use crate::job::JobId;
use crate::record::{Record, RecordDevice, RecordGpu, RecordState};
use std::fmt::Display;

pub fn uuid(n: impl Display) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-0000000{n}")).unwrap()
}

pub fn gpu(index: u32, memory_mib: impl Into<Option<u64>>) -> Gpu {
    Gpu {
        index,
        uuid: uuid(index),
        name: "NVIDIA X".to_owned(),
        memory_mib: memory_mib.into(),
        mig: Mig::Off,
        capability: (9, 0),
        minor: None,
        cpus: None,
    }
}

pub fn record_gpu(index: u32) -> RecordGpu {
    RecordGpu {
        index,
        uuid: uuid(index),
        cpus: None,
        memory_mib: None,
    }
}

pub fn device(n: impl Display, file: &str) -> RecordDevice {
    RecordDevice {
        uuid: uuid(n),
        file: file.into(),
    }
}

/// Of job 7, which user 1000 has.
pub fn record(gpus: &[u32]) -> Record {
    let id = JobId::parse("7").unwrap();
    Record {
        gpus: gpus.iter().copied().map(record_gpu).collect(),
        ..Record::without_mps(id, 1000, RecordState::Ready, String::new())
    }
}
