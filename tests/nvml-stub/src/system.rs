//! Functions about the library and the machine.

use std::ffi::{c_char, c_int, c_uint};

use crate::{NODE, NOT_FOUND, Out, Return, SUCCESS, answer, initialize, node, put, text};

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> Return {
    initialize()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> Return {
    initialize()
}

/// The flags change nothing here.
#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> Return {
    initialize()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> Return {
    if let Ok(mut node) = NODE.lock() {
        *node = None;
    }
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(error: Return) -> *const c_char {
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

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> Return {
    // SAFETY: the caller gives room for `length` bytes.
    answer(|| unsafe { text(version, length, &node()?.is.driver_version) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) -> Return {
    // SAFETY: the caller gives room for `length` bytes.
    answer(|| unsafe { text(version, length, &format!("13.{}", node()?.is.driver_version)) })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) -> Return {
    answer(|| put(version, node()?.is.cuda_version as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) -> Return {
    nvmlSystemGetCudaDriverVersion(version)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint) -> Return {
    answer(|| {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).map_err(|_| NOT_FOUND)?;
        // SAFETY: the caller gives room for `length` bytes.
        unsafe { text(name, length, &exe.to_string_lossy()) }
    })
}
