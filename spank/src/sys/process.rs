//! What Slurm gives to this process without a handle.

use super::abi;
use crate::handle::{Context, Level};
use std::ffi::{CStr, CString, c_char};

/// The context of this process.
pub fn context() -> Context {
    match abi::spank_context() {
        abi::context::LOCAL => Context::Local,
        abi::context::ALLOCATOR => Context::Allocator,
        abi::context::REMOTE => Context::Remote,
        abi::context::SLURMD => Context::Slurmd,
        abi::context::JOB_SCRIPT => Context::JobScript,
        _ => Context::Unknown,
    }
}

/// One line to the place where this process's messages go.
pub fn log(level: Level, line: &str) {
    let Ok(line) = CString::new(format!("mps: {}", line.replace('\0', "?"))) else {
        return;
    };
    let format = c"%s".as_ptr();
    match level {
        // SAFETY: the format takes one string, which lives until the call returns.
        Level::Error => unsafe { abi::slurm_error(format, line.as_ptr()) },
        // SAFETY: as above.
        Level::Info => unsafe { abi::slurm_info(format, line.as_ptr()) },
        // SAFETY: as above.
        Level::Verbose => unsafe { abi::slurm_verbose(format, line.as_ptr()) },
    }
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
