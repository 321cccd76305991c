//! What the driver counts of a GPU over time. The values are always those of `node.toml`.

use std::ffi::{c_int, c_uint, c_ulonglong};
use std::time::UNIX_EPOCH;

use nvml_wrapper_sys::bindings::{nvmlGpmMetric_t, nvmlSample_t as Sample, nvmlValue_t};

use crate::node::Counts;
use crate::{
    Device, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, Out, Return, SUCCESS,
    answer, gpu, mig, put,
};

/// `NVML_GPU_UTILIZATION_SAMPLES` and `NVML_MEMORY_UTILIZATION_SAMPLES`.
const BUSY: c_int = 1;
const MEMORY_BUSY: c_int = 2;
/// `NVML_VALUE_TYPE_UNSIGNED_INT`.
const UNSIGNED: c_uint = 1;
/// The driver's buffer, in samples, and microseconds between two of them.
const KEPT: u64 = 100;
const PERIOD: u64 = 100_000;
/// `NVML_GPM_METRIC_SM_UTIL` and `NVML_GPM_METRIC_DRAM_BW_UTIL`.
const SM: c_uint = 2;
const BANDWIDTH: c_uint = 10;

#[repr(C)]
pub struct Metrics {
    version: c_uint,
    count: c_uint,
    samples: [*const Device; 2],
    first: nvmlGpmMetric_t,
}

fn now() -> u64 {
    UNIX_EPOCH.elapsed().unwrap_or_default().as_micros() as u64
}

/// For GPUs only: nvml.h has none of these for a MIG device.
fn counts(device: Device) -> Result<Counts, Return> {
    let (_, gpu, _) = gpu(device)?;
    let is_whole = mig::place(device).is_none() && gpu.mig.is_empty();
    gpu.counts.filter(|_| is_whole).ok_or(NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetSamples(
    device: Device,
    kind: c_int,
    after: c_ulonglong,
    value_type: Out<c_uint>,
    count: Option<&mut c_uint>,
    to: *mut Sample,
) -> Return {
    answer(|| {
        let counts = counts(device)?;
        let value = match kind {
            BUSY => counts.busy,
            MEMORY_BUSY => counts.memory_busy,
            _ => return Err(NOT_SUPPORTED),
        };
        put(value_type, UNSIGNED)?;
        let count = count.ok_or(INVALID_ARGUMENT)?;
        if to.is_null() {
            // Like NVML: the size of the buffer, not the number of new samples.
            *count = KEPT as c_uint;
            return Ok(());
        }
        let last = now() / PERIOD;
        let times = (last + 1 - KEPT..=last).map(|n| n * PERIOD);
        let sampleValue = nvmlValue_t {
            ullVal: value.into(),
        };
        let sample = |timeStamp| Sample {
            timeStamp,
            sampleValue,
        };
        let all: Vec<Sample> = times.filter(|at| *at > after).map(sample).collect();
        if all.len() > *count as usize {
            return Err(INSUFFICIENT_SIZE);
        }
        *count = all.len() as c_uint;
        if all.is_empty() {
            return Err(NOT_FOUND);
        }
        // SAFETY: not null, and the caller gives room for `count` samples.
        unsafe { to.copy_from_nonoverlapping(all.as_ptr(), all.len()) };
        Ok(())
    })
}

/// In millijoules.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTotalEnergyConsumption(
    device: Device,
    energy: Out<c_ulonglong>,
) -> Return {
    answer(|| put(energy, counts(device)?.watts * (now() / 1000)))
}

/// A sample holds its GPU's handle.
#[unsafe(no_mangle)]
extern "C" fn nvmlGpmSampleAlloc(sample: Out<*mut Device>) -> Return {
    answer(|| put(sample, Box::into_raw(Box::new(std::ptr::null_mut()))))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpmSampleFree(sample: *mut Device) -> Return {
    // SAFETY: the caller gives a sample of `nvmlGpmSampleAlloc`, once.
    drop(unsafe { Box::from_raw(sample) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpmSampleGet(device: Device, sample: *mut Device) -> Return {
    answer(|| {
        counts(device)?.shares.ok_or(NOT_SUPPORTED)?;
        // SAFETY: the caller gives a sample of `nvmlGpmSampleAlloc`.
        unsafe { sample.write(device) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpmMetricsGet(metrics: *mut Metrics) -> Return {
    answer(|| {
        // SAFETY: the caller gives its structure, and two samples of `nvmlGpmSampleGet` in it.
        let (count, device) = unsafe { ((*metrics).count, *(*metrics).samples[1]) };
        let (sm, bandwidth) = counts(device)?.shares.ok_or(NOT_SUPPORTED)?;
        for place in 0..count as usize {
            // SAFETY: the structure ends in `count` metrics or more, of which `first` is the first.
            let metric = unsafe { &mut *(&raw mut (*metrics).first).add(place) };
            let value = match metric.metricId {
                SM => Some(sm),
                BANDWIDTH => Some(bandwidth),
                _ => None,
            };
            metric.nvmlReturn = value.map_or(NOT_SUPPORTED, |_| SUCCESS);
            metric.value = value.unwrap_or(0.0);
            let info = &mut metric.metricInfo;
            for text in [&mut info.shortName, &mut info.longName, &mut info.unit] {
                *text = c"".as_ptr().cast_mut();
            }
        }
        Ok(())
    })
}
