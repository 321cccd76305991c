//! What makes a library a plugin of Slurm, for this double and that of `tests/sluid-double`.
#![allow(non_upper_case_globals)]

use std::ffi::{CStr, c_char, c_int, c_void};

pub type Spank = *mut c_void;

/// What Slurm's loader expects.
#[used]
#[unsafe(no_mangle)]
pub static plugin_name: [u8; 7] = *b"double\0";
#[used]
#[unsafe(no_mangle)]
pub static plugin_type: [u8; 6] = *b"spank\0";
/// Slurm's release, written by the test.
#[used]
#[unsafe(no_mangle)]
pub static plugin_version: u32 = 0x16_05_00;

/// The words of plugstack.conf.
///
/// # Safety
/// `words` has `count` C strings.
pub unsafe fn texts(count: c_int, words: *const *const c_char) -> Vec<String> {
    // SAFETY: as the caller promises.
    let word = |n| unsafe { CStr::from_ptr(*words.add(n)) };
    let count = usize::try_from(count).unwrap_or(0);
    let words = (0..count).map(|n| word(n).to_string_lossy().into_owned());
    words.collect()
}
