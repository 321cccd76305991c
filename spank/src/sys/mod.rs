//! Slurm's ABI: what the plugin exports.
//!
//! It exports the three names that Slurm's loader needs and the seven callbacks, and nothing else (a test reads the symbol
//! table). Slurm calls what it finds: `job_prolog` and `job_epilog` cost a process each for every job, and `task_exit` one
//! call a task. Under `SlurmdParameters=contain_spank` (24.11) `task_exit` is a child that shares memory with slurmstepd, as
//! `task_post_fork` and `user_init` would be. Never export `init` or `fini`: Slurm's loader calls them.
#![allow(non_upper_case_globals)]

mod abi;
mod guard;
mod host;
pub(crate) mod spawn;

use crate::plugin::{self, Callback};
use guard::guard;
use host::Handle;
use std::ffi::{c_char, c_int};

/// `[a-z0-9_]`, part of the options' names in the environment (`_SLURM_SPANK_OPTION_mps_…`): never to be renamed.
#[used]
#[unsafe(no_mangle)]
pub static plugin_name: [u8; 4] = *b"mps\0";

/// What Slurm's loader expects of a SPANK plugin.
#[used]
#[unsafe(no_mangle)]
pub static plugin_type: [u8; 6] = *b"spank\0";

/// The Slurm release that the plugin claims to be built for: `major << 16 | minor << 8 | micro`. Slurm compares major and
/// minor with its own (`src/common/plugin.c`, `_verify_syms`). The plugin differs between releases in nothing else, so it
/// is linked once, and packaging writes these four bytes (little endian, in `.rodata`) for each release.
#[used]
#[unsafe(no_mangle)]
pub static plugin_version: u32 = version(option_env!("MPSD_SLURM_VERSION"));

/// 22.05, unless the build names another release as `YY.MM`.
const fn version(release: Option<&str>) -> u32 {
    let Some(release) = release else { return 0x16_05_00 };
    match *release.as_bytes() {
        [tens, ones, b'.', ten, one] => (pair(tens, ones) << 16) + (pair(ten, one) << 8),
        _ => panic!("MPSD_SLURM_VERSION is YY.MM, as in 22.05"),
    }
}

const fn pair(tens: u8, ones: u8) -> u32 {
    assert!(tens.is_ascii_digit() && ones.is_ascii_digit());
    (tens - b'0') as u32 * 10 + (ones - b'0') as u32
}

/// The words after the plugin's path in plugstack.conf.
///
/// # Safety
/// `words` points to `count` C strings, or `count` is not positive.
unsafe fn words(count: c_int, words: *const *const c_char) -> Vec<String> {
    let count = usize::try_from(count).unwrap_or(0);
    if words.is_null() || count == 0 {
        return Vec::new();
    }
    // SAFETY: not NULL, and as many pointers as the caller promises.
    let words = unsafe { std::slice::from_raw_parts(words, count) };
    // SAFETY: each is NULL, or a C string by the caller's promise.
    words
        .iter()
        .filter_map(|word| unsafe { abi::text(*word) })
        .collect()
}

macro_rules! callback {
    ($(#[$doc:meta])* $name:ident => $callback:ident) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// Slurm calls it with its own handle and the `count` words of plugstack.conf.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(spank: abi::Spank, count: c_int, line: *const *const c_char) -> c_int {
            // SAFETY: Slurm's own words, alive during the callback.
            let words = unsafe { words(count, line) };
            guard(|state| {
                let slurm = &mut Handle::new(spank);
                plugin::call(Callback::$callback, slurm, &crate::node::ThisNode, state, &words)
            })
        }
    };
}

callback! {
    /// Every context but job_script, before options are read.
    slurm_spank_init => Init
}
callback! {
    /// srun, sbatch, salloc, and slurmstepd as root: the options are read.
    slurm_spank_init_post_opt => InitPostOpt
}
callback! {
    /// `slurmstepd spank prolog`, root.
    slurm_spank_job_prolog => JobProlog
}
callback! {
    /// `slurmstepd spank epilog`, root.
    slurm_spank_job_epilog => JobEpilog
}
callback! {
    /// The forked child of a task, as the user, just before exec.
    slurm_spank_task_init => TaskInit
}
callback! {
    /// slurmstepd, root: a task has ended, and the step's standard error is still there.
    slurm_spank_task_exit => TaskExit
}
callback! {
    /// The end of slurmstepd (root), srun, sbatch, salloc.
    slurm_spank_exit => Exit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stamp_is_major_and_minor() {
        assert_eq!(version(None), 0x16_05_00);
        assert_eq!(version(Some("26.05")), 0x1a_05_00);
        assert_eq!(version(Some("23.11")), 0x17_0b_00);
    }
}
