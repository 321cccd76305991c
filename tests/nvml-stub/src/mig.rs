//! MIG: its mode, its devices and what they are (nvml.h, "Multi Instance GPU Management").

use std::ffi::{c_uint, c_ulonglong};

use crate::node::{Gpu, SLICES};
use crate::out;
use crate::{Device, NOT_FOUND, NOT_SUPPORTED, Return, gpu, healthy, node, part, returned};

/// Whether MIG is on.
///
/// # Safety
/// Both pointers point to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(device: Device, now: *mut c_uint, next: *mut c_uint) -> Return {
    returned(gpu(device).and_then(|(_, gpu, _)| {
        if !gpu.mig_capable {
            return Err(NOT_SUPPORTED);
        }
        let on = c_uint::from(!gpu.mig.is_empty());
        // SAFETY: the caller's promise.
        unsafe { out::value(now, on) }?;
        // SAFETY: the caller's promise.
        unsafe { out::value(next, on) }
    }))
}

/// How many MIG devices a GPU may have.
///
/// # Safety
/// `count` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxMigDeviceCount(device: Device, count: *mut c_uint) -> Return {
    // SAFETY: the caller's promise.
    returned(gpu(device).and_then(|(_, gpu, _)| {
        // "Returns zero if MIG is not supported or enabled."
        let most = if gpu.mig.is_empty() { 0 } else { SLICES };
        // SAFETY: the caller's promise.
        unsafe { out::value(count, most) }
    }))
}

/// Writes the handle of the MIG device with this UUID.
///
/// # Safety
/// `device` points to a handle.
pub(crate) unsafe fn handle(device: *mut Device, uuid: &str) -> Return {
    returned(node().and_then(|node| {
        let number = |gpu: &Gpu| gpu.mig.iter().position(|mig| mig.uuid == uuid);
        let mut gpus = node.is.gpu.iter().enumerate();
        let found = gpus.find_map(|(at, gpu)| Some((at, gpu, number(gpu)?)));
        let (at, gpu, number) = found.ok_or(NOT_FOUND)?;
        healthy(gpu)?;
        let handle = (at + 1) * 0x1000 + number;
        // SAFETY: the caller's promise.
        unsafe { out::value(device, std::ptr::without_provenance_mut(handle)) }
    }))
}

/// `nvmlDeviceAttributes_t`.
#[repr(C)]
#[derive(Debug)]
pub struct Attributes {
    multiprocessors: c_uint,
    copy_engines: c_uint,
    decoders: c_uint,
    encoders: c_uint,
    jpeg: c_uint,
    ofa: c_uint,
    gpu_slices: c_uint,
    compute_slices: c_uint,
    memory_mb: c_ulonglong,
}

/// The size of a MIG device ("This API currently only supports MIG device handles").
///
/// # Safety
/// `to` points to room for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetAttributes_v2(device: Device, to: *mut Attributes) -> Return {
    returned(part(device).and_then(|(_, part)| {
        let slices = part.slices.ok_or(NOT_SUPPORTED)?;
        let attributes = Attributes {
            multiprocessors: part.sms,
            copy_engines: 1,
            decoders: 0,
            encoders: 0,
            jpeg: 0,
            ofa: 0,
            gpu_slices: slices,
            compute_slices: slices,
            memory_mb: part.memory_mib,
        };
        // SAFETY: the caller's promise.
        unsafe { out::value(to, attributes) }
    }))
}

/// One MIG device of a GPU.
///
/// # Safety
/// `mig` points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: Device,
    index: c_uint,
    mig: *mut Device,
) -> Return {
    returned(gpu(device).and_then(|(_, gpu, at)| {
        if index as usize >= gpu.mig.len() {
            return Err(NOT_FOUND);
        }
        let handle = (at + 1) * 0x1000 + index as usize;
        // SAFETY: the caller's promise.
        unsafe { out::value(mig, std::ptr::without_provenance_mut(handle)) }
    }))
}

/// The GPU of a MIG device.
///
/// # Safety
/// `device` points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    mig: Device,
    device: *mut Device,
) -> Return {
    // SAFETY: the caller's promise.
    returned(
        gpu(mig)
            .and_then(|(_, _, at)| unsafe { out::value(device, std::ptr::without_provenance_mut(at + 1)) }),
    )
}

/// Whether a handle is that of a MIG device.
///
/// # Safety
/// `is` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceIsMigDeviceHandle(device: Device, is: *mut c_uint) -> Return {
    // SAFETY: the caller's promise.
    returned(gpu(device).and_then(|_| unsafe { out::value(is, c_uint::from(device as usize >= 0x1000)) }))
}
