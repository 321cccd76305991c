//! Slurm's plugin ABI, written by hand: `slurm/spank.h` and `slurm/slurm_errno.h`, the same from 22.05 to 26.05
//! (only additions between them: `spank_prepend_task_argv` in 23.11, `slurm_spank_init_failure_mode` in 25.05).
//!
//! Every function here must exist in every program that loads the plugin, because Rust links with BIND_NOW. They come from
//! the program's own `libslurmfull.so`; nothing is linked.

use crate::handle::{Context, Level};
use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// `spank_t`: opaque, valid during one callback.
pub type Spank = *mut c_void;

/// `ESPANK_SUCCESS`.
pub const SUCCESS: c_int = 0;

/// `spank_opt_cb_f`: 0 accepts, a negative value refuses; `argument` may be NULL.
pub type OptionCallback = extern "C" fn(value: c_int, argument: *const c_char, remote: c_int) -> c_int;

/// `struct spank_option`. Slurm copies it when it is registered or asked for.
#[repr(C)]
pub struct RawOption {
    pub name: *const c_char,
    pub arginfo: *const c_char,
    /// Must not be NULL.
    pub usage: *const c_char,
    /// 0 no argument, 1 required, 2 optional, as for getopt_long(3).
    pub has_arg: c_int,
    pub val: c_int,
    pub cb: Option<OptionCallback>,
}

unsafe extern "C" {
    /// Which program loaded the plugin.
    pub safe fn spank_context() -> c_int;
    pub fn spank_get_item(spank: Spank, item: c_int, ...) -> c_int;
    pub fn spank_getenv(spank: Spank, name: *const c_char, buffer: *mut c_char, length: c_int) -> c_int;
    pub fn spank_setenv(spank: Spank, name: *const c_char, value: *const c_char, overwrite: c_int) -> c_int;
    pub fn spank_unsetenv(spank: Spank, name: *const c_char) -> c_int;
    /// Crashes Slurm in the job_script context, and in local_user_init of a het job
    /// (docs/facts/slurm.md#calls-that-crash-slurm): only for init and init_post_opt of the local and allocator
    /// contexts.
    pub fn spank_job_control_setenv(
        spank: Spank,
        name: *const c_char,
        value: *const c_char,
        overwrite: c_int,
    ) -> c_int;
    /// As `spank_job_control_setenv`.
    pub fn spank_job_control_unsetenv(spank: Spank, name: *const c_char) -> c_int;
    pub fn spank_option_register(spank: Spank, option: *mut RawOption) -> c_int;
    pub fn spank_option_getopt(spank: Spank, option: *mut RawOption, argument: *mut *mut c_char) -> c_int;
    pub fn slurm_error(format: *const c_char, ...);
    pub fn slurm_info(format: *const c_char, ...);
    pub fn slurm_verbose(format: *const c_char, ...);
    /// Always to the user, without a word like `error:` before it.
    pub fn slurm_spank_log(format: *const c_char, ...);
}

/// The context of this process.
pub fn context() -> Context {
    // `enum spank_context`, spank.h.
    match spank_context() {
        1 => Context::Local,
        2 => Context::Remote,
        3 => Context::Allocator,
        4 => Context::Slurmd,
        5 => Context::JobScript,
        _ => Context::Unknown,
    }
}

/// Writes one line to the place of this process's messages.
pub fn log(level: Level, line: &str) {
    let Ok(line) = CString::new(format!("mps: {}", line.replace('\0', "?"))) else {
        return;
    };
    let say = match level {
        Level::Error => slurm_error,
        Level::Notice => slurm_spank_log,
        Level::Info => slurm_info,
        Level::Verbose => slurm_verbose,
    };
    // SAFETY: the format takes one string, which lives until the call returns.
    unsafe { say(c"%s".as_ptr(), line.as_ptr()) };
}

/// Text of the C string at `text`; `None` for NULL. Bytes that are not UTF-8 become replacement characters, which no
/// parser here accepts.
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
