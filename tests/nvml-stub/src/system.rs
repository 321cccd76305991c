//! Functions about the library and the machine. Each trusts its caller's pointers, as NVML does.

use std::ffi::{c_char, c_int, c_uint};

use crate::out;
use crate::{NODE, NOT_FOUND, Return, SUCCESS, initialize, node, returned};

/// `nvmlInit`, first version.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit() -> Return {
    initialize()
}

/// `nvmlInit`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> Return {
    initialize()
}

/// `nvmlInit` with flags, which change nothing here.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> Return {
    initialize()
}

/// The end of the use of this library.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> Return {
    if let Ok(mut node) = NODE.lock() {
        *node = None;
    }
    SUCCESS
}

/// The words for an error.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(error: Return) -> *const c_char {
    let text = match error {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        15 => c"GPU is lost",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

/// The driver's version.
///
/// # Safety
/// `version` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> Return {
    // SAFETY: the caller's promise.
    returned(node().and_then(|node| unsafe { out::text(version, length, &node.is.driver_version) }))
}

/// NVML's version.
///
/// # Safety
/// `version` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) -> Return {
    let text = |driver: &str| format!("13.{driver}");
    // SAFETY: the caller's promise.
    returned(node().and_then(|node| unsafe { out::text(version, length, &text(&node.is.driver_version)) }))
}

/// CUDA's version.
///
/// # Safety
/// `version` points to an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) -> Return {
    // SAFETY: the caller's promise.
    returned(node().and_then(|node| unsafe { out::value(version, node.is.cuda_version as c_int) }))
}

/// CUDA's version.
///
/// # Safety
/// `version` points to an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> Return {
    // SAFETY: the caller's promise.
    unsafe { nvmlSystemGetCudaDriverVersion(version) }
}

/// The name of a process.
///
/// # Safety
/// `name` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint) -> Return {
    let found = std::fs::read_link(format!("/proc/{pid}/exe")).map_err(|_| NOT_FOUND);
    // SAFETY: the caller's promise.
    returned(found.and_then(|exe| unsafe { out::text(name, length, &exe.to_string_lossy()) }))
}
