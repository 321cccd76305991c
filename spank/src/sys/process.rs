//! What Slurm gives to this process without a handle.

use super::abi;
use crate::handle::{Context, Level};
use std::ffi::{CStr, CString, c_char};

/// The context of this process.
pub fn context() -> Context {
    // `enum spank_context`, spank.h.
    match abi::spank_context() {
        1 => Context::Local,
        2 => Context::Remote,
        3 => Context::Allocator,
        4 => Context::Slurmd,
        5 => Context::JobScript,
        _ => Context::Unknown,
    }
}

/// One line to the place where this process's messages go.
pub fn log(level: Level, line: &str) {
    let Ok(line) = CString::new(format!("mps: {}", line.replace('\0', "?"))) else {
        return;
    };
    let say = match level {
        Level::Error => abi::slurm_error,
        Level::Told => abi::slurm_spank_log,
        Level::Info => abi::slurm_info,
        Level::Verbose => abi::slurm_verbose,
    };
    // SAFETY: the format takes one string, which lives until the call returns.
    unsafe { say(c"%s".as_ptr(), line.as_ptr()) };
}

/// Text of the C string at `text`; `None` for NULL. Bytes that are no UTF-8 become replacement characters, which no
/// parser of ours accepts.
///
/// # Safety
/// `text` is NULL or a C string that lives until this returns.
pub unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not NULL, and a C string by the caller's promise.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
