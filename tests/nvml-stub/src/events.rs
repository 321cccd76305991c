//! Events: sets can be made and waited for, and no event ever comes.

use std::ffi::{c_uint, c_ulonglong, c_void};
use std::time::Duration;

use crate::out;
use crate::{Device, Return, SUCCESS, TIMEOUT, gpu, returned};

/// `nvmlEventTypeXidCriticalError` alone.
const XID: c_ulonglong = 8;

/// Makes a set.
///
/// # Safety
/// `set` points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(set: *mut *mut c_void) -> Return {
    // SAFETY: the caller's promise.
    returned(unsafe { out::value(set, std::ptr::without_provenance_mut(1)) })
}

/// Gives a set back.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(_set: *mut c_void) -> Return {
    SUCCESS
}

/// Which events a GPU can report.
///
/// # Safety
/// `types` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetSupportedEventTypes(device: Device, types: *mut c_ulonglong) -> Return {
    // SAFETY: the caller's promise.
    returned(gpu(device).and_then(|_| unsafe { out::value(types, XID) }))
}

/// Asks for events of a GPU.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceRegisterEvents(device: Device, _types: c_ulonglong, _set: *mut c_void) -> Return {
    returned(gpu(device).map(|_| ()))
}

/// Waits for an event: in vain.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetWait_v2(_set: *mut c_void, _data: *mut c_void, milliseconds: c_uint) -> Return {
    std::thread::sleep(Duration::from_millis(milliseconds.into()));
    TIMEOUT
}
