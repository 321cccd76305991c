//! srun's own options, by the functions with which Slurm's `cli_filter` plugins reach them (`src/common/slurm_opt.h`; the
//! same from 22.05 to 26.05). Looked up when they are wanted: only srun has them all.

use super::process::text;
use nix::libc;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute;

type Get = unsafe extern "C" fn(*mut c_void, *const c_char) -> *const c_char;
type Set = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char, bool) -> c_int;

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a lookup by name in the program and what it has loaded; it runs no code of anybody's.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// `opt`, the options of the component that srun has just read; `sropt` exists in srun alone.
fn options() -> Option<*mut c_void> {
    symbol(c"sropt").and(symbol(c"opt"))
}

/// An option's value.
pub fn get(option: &CStr) -> Option<String> {
    let (options, get) = (options()?, symbol(c"slurm_option_get")?);
    // SAFETY: the function of this name has this type in every release.
    let get: Get = unsafe { transmute(get) };
    // SAFETY: `options` is what it takes; it makes a copy of the value, which is left to srun.
    let value = unsafe { get(options, option.as_ptr()) };
    // SAFETY: NULL or a C string that nobody frees.
    unsafe { text(value) }
}

/// Sets an option.
pub fn set(option: &CStr, value: &str) {
    let (Some(options), Some(set), Ok(value)) = (options(), symbol(c"slurm_option_set"), CString::new(value))
    else {
        return;
    };
    // SAFETY: the function of this name has this type in every release.
    let set: Set = unsafe { transmute(set) };
    // SAFETY: `options` is what it takes; Slurm copies the value.
    unsafe { set(options, option.as_ptr(), value.as_ptr(), false) };
}
