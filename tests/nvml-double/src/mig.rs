//! MIG: its mode, its devices and what they are (nvml.h, "Multi Instance GPU Management").

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::nvmlDeviceAttributes_t;

use crate::node::{Gpu, SLICES};
use crate::{Device, NOT_FOUND, NOT_SUPPORTED, Out, Return, answer, gpu, healthy, node, part, put};

/// The first handle of MIG devices; GPUs have lower numbers.
const FIRST: usize = 0x1000;

/// The index of a MIG device's GPU, and its own index there; `None` for a GPU's handle.
pub fn place(device: Device) -> Option<(usize, usize)> {
    let handle = device as usize;
    (handle >= FIRST).then(|| (handle / FIRST - 1, handle % FIRST))
}

fn put_handle(device: Out<Device>, gpu: usize, number: usize) -> Result<(), Return> {
    let handle = (gpu + 1) * FIRST + number;
    put(device, std::ptr::without_provenance_mut(handle))
}

/// Writes the handle of the MIG device with this UUID.
pub fn handle(device: Out<Device>, uuid: &str) -> Result<(), Return> {
    let node = node()?;
    let number = |gpu: &Gpu| gpu.mig.iter().position(|mig| mig.uuid == uuid);
    let mut gpus = node.is.gpu.iter().enumerate();
    let found = gpus.find_map(|(at, gpu)| Some((at, gpu, number(gpu)?)));
    let (at, gpu, number) = found.ok_or(NOT_FOUND)?;
    healthy(gpu)?;
    put_handle(device, at, number)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigMode(device: Device, now: Out<c_uint>, next: Out<c_uint>) -> Return {
    answer(|| {
        let (_, gpu, _) = gpu(device)?;
        let on = c_uint::from(!gpu.mig.is_empty());
        put(now, on)?;
        put(next, on)
    })
}

/// "Returns zero if MIG is not supported or enabled."
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxMigDeviceCount(device: Device, count: Out<c_uint>) -> Return {
    answer(|| {
        let is_on = !gpu(device)?.1.mig.is_empty();
        put(count, if is_on { SLICES } else { 0 })
    })
}

/// "This API currently only supports MIG device handles."
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetAttributes_v2(
    device: Device,
    to: Out<nvmlDeviceAttributes_t>,
) -> Return {
    answer(|| {
        let (_, part) = part(device)?;
        let slices = part.slices.ok_or(NOT_SUPPORTED)?;
        let attributes = nvmlDeviceAttributes_t {
            multiprocessorCount: part.sms,
            sharedCopyEngineCount: 1,
            sharedDecoderCount: 0,
            sharedEncoderCount: 0,
            sharedJpegCount: 0,
            sharedOfaCount: 0,
            gpuInstanceSliceCount: slices,
            computeInstanceSliceCount: slices,
            memorySizeMB: part.memory_mib,
        };
        put(to, attributes)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: Device,
    index: c_uint,
    mig: Out<Device>,
) -> Return {
    answer(|| {
        let (_, gpu, at) = gpu(device)?;
        if index as usize >= gpu.mig.len() {
            return Err(NOT_FOUND);
        }
        put_handle(mig, at, index as usize)
    })
}
