//! MIG: its mode, and its devices as far as their names.

use std::ffi::c_uint;

use crate::out;
use crate::{Device, NOT_FOUND, NOT_SUPPORTED, Return, gpu, returned};

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
    returned(
        gpu(device).and_then(|(_, gpu, _)| unsafe { out::value(count, if gpu.mig_capable { 7 } else { 0 }) }),
    )
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
