//! Slurm's ABI: what the plugin exports, and the way in and out of each callback.
//!
//! Exported are the three names that Slurm's loader looks for and the six callbacks; nothing else (a test reads the
//! symbol table). Slurm decides by the presence of a symbol: `job_prolog` and `job_epilog` cost a process each for
//! every job, `task_post_fork`, `user_init` and `task_exit` would run in a child that shares memory with slurmstepd.
//! Never export `init` or `fini`: Slurm's loader calls them.
#![allow(non_upper_case_globals)]

mod abi;
mod host;
mod spawn;

pub use spawn::run;

use crate::handle::{Context, Level, Verdict};
use crate::plugin::{self, State};
use host::Handle;
use mpsd_core::request::Key;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

/// `[a-z0-9_]`, part of the options' names in the environment (`_SLURM_SPANK_OPTION_mps_…`): never to be renamed.
#[used]
#[unsafe(no_mangle)]
pub static plugin_name: [u8; 4] = *b"mps\0";

/// What Slurm's loader expects of a SPANK plugin.
#[used]
#[unsafe(no_mangle)]
pub static plugin_type: [u8; 6] = *b"spank\0";

/// The Slurm release that the plugin claims to be built for: `major << 16 | minor << 8 | micro`, of which Slurm compares
/// major and minor with its own (`src/common/plugin.c`, `_verify_syms`). The plugin differs between releases in nothing
/// else, so it is linked once and these four bytes (little endian, the dynamic symbol `plugin_version`, in `.rodata`)
/// are written for each release.
#[used]
#[unsafe(no_mangle)]
pub static plugin_version: u32 = version(option_env!("MPSD_SLURM_VERSION"));

/// 22.05, unless the build names another release as `YY.MM`.
const fn version(release: Option<&str>) -> u32 {
    let Some(release) = release else { return 0x16_05_00 };
    let text = release.as_bytes();
    assert!(
        text.len() == 5 && text[2] == b'.',
        "MPSD_SLURM_VERSION is YY.MM, as in 22.05"
    );
    (pair(text[0], text[1]) << 16) + (pair(text[3], text[4]) << 8)
}

const fn pair(tens: u8, ones: u8) -> u32 {
    assert!(
        tens.is_ascii_digit() && ones.is_ascii_digit(),
        "MPSD_SLURM_VERSION is YY.MM, as in 22.05"
    );
    (tens - b'0') as u32 * 10 + (ones - b'0') as u32
}

/// What `slurm_spank_init` made, and what the options' callbacks added. Only ever tried, never waited for: a task's
/// forked child may find it taken by a thread that it does not have.
static STATE: Mutex<Option<State>> = Mutex::new(None);

/// Runs `body` on the state. A panic that ended an earlier callback leaves it usable.
fn with_state<T>(body: impl FnOnce(&mut State) -> T) -> Option<T> {
    let mut state = match STATE.try_lock() {
        Ok(state) => state,
        Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
        Err(TryLockError::WouldBlock) => return None,
    };
    Some(body(state.get_or_insert_with(State::default)))
}

/// Makes a panic one line of Slurm's log instead of a backtrace on the user's terminal.
fn quiet_panics() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    std::panic::set_hook(Box::new(|info| {
        let place = info
            .location()
            .map_or_else(String::new, |at| format!(" at {}:{}", at.file(), at.line()));
        host::log(Level::Error, &format!("internal error{place}; please report it"));
    }));
}

/// One callback: no panic leaves it, and a failure is exactly -1 (up to Slurm 24.11 only negative values count,
/// later every non-zero one does).
fn guard(callback: impl FnOnce(&mut State) -> Verdict) -> c_int {
    quiet_panics();
    match contain(callback) {
        Verdict::Continue => 0,
        Verdict::Fail => -1,
        // SAFETY: ends this process, which is the callback's own (see `Verdict::Leave`), without running the exit
        // handlers that it inherited from slurmstepd.
        Verdict::Leave => unsafe { nix::libc::_exit(1) },
    }
}

/// Runs a callback on the state; a panic, or a state that is taken, is a failure.
fn contain(callback: impl FnOnce(&mut State) -> Verdict) -> Verdict {
    catch_unwind(AssertUnwindSafe(|| with_state(callback)))
        .ok()
        .flatten()
        .unwrap_or(Verdict::Fail)
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
        .filter_map(|word| unsafe { host::text(*word) })
        .collect()
}

macro_rules! callback {
    ($(#[$doc:meta])* $name:ident => $body:path) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// Slurm calls it with its own handle and the `count` words of plugstack.conf.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(spank: abi::Spank, count: c_int, line: *const *const c_char) -> c_int {
            // SAFETY: Slurm's own words, alive during the callback.
            let words = unsafe { words(count, line) };
            guard(|state| $body(&mut Handle::new(spank), &crate::node::ThisNode, state, &words))
        }
    };
}

callback! {
    /// Every context but job_script, before options are read.
    slurm_spank_init => plugin::init
}
callback! {
    /// srun, sbatch, salloc, and slurmstepd as root: the options are read.
    slurm_spank_init_post_opt => plugin::init_post_opt
}
callback! {
    /// `slurmstepd spank prolog`, root.
    slurm_spank_job_prolog => plugin::job_prolog
}
callback! {
    /// `slurmstepd spank epilog`, root.
    slurm_spank_job_epilog => plugin::job_epilog
}
callback! {
    /// The forked child of a task, as the user, just before exec.
    slurm_spank_task_init => plugin::task_init
}
callback! {
    /// The end of slurmstepd (root), srun, sbatch, salloc.
    slurm_spank_exit => plugin::exit
}

/// One option was given: at submission (`remote` 0), or as it arrives on a node.
pub extern "C" fn option_callback(number: c_int, argument: *const c_char, remote: c_int) -> c_int {
    // SAFETY: Slurm passes NULL or the option's argument, alive during the callback.
    let argument = unsafe { host::text(argument) };
    guard(|state| {
        let key = usize::try_from(number)
            .ok()
            .and_then(|number| Key::ALL.get(number));
        let refused = key.and_then(|key| plugin::option(state, *key, argument.as_deref(), remote != 0));
        refused.map_or(Verdict::Continue, |line| {
            host::log(Level::Error, &line);
            match host::context() {
                // A refusal of the user's command line: `optional` does not ignore an option's callback.
                Context::Local | Context::Allocator | Context::Remote => Verdict::Fail,
                _ => Verdict::Continue,
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_fails_its_own_callback_and_no_later_one() {
        let taken = contain(|state| {
            state.own_daemon = true;
            // As in a task's child that was forked while another thread had the state.
            contain(|_| Verdict::Continue)
        });
        assert_eq!(taken, Verdict::Fail);
        assert_eq!(
            contain(|state| if state.own_daemon {
                Verdict::Continue
            } else {
                Verdict::Leave
            }),
            Verdict::Continue
        );
        assert_eq!(contain(|_| panic!("on purpose")), Verdict::Fail);
        assert_eq!(
            contain(|state| if state.own_daemon {
                Verdict::Continue
            } else {
                Verdict::Leave
            }),
            Verdict::Continue
        );
    }

    #[test]
    fn the_stamp_is_major_and_minor() {
        assert_eq!(version(None), 0x16_05_00);
        assert_eq!(version(Some("26.05")), 0x1a_05_00);
        assert_eq!(version(Some("23.11")), 0x17_0b_00);
    }
}
