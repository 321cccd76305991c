//! Slurm's ABI: what the plugin exports. No panic leaves a callback, and all callbacks of a process
//! share one state.
//!
//! It exports the three names that Slurm's loader needs and the seven callbacks, and nothing else.
//! Slurm calls what it finds: `job_prolog` and `job_epilog` cost a process each for every job, and
//! `task_exit` one call a task. Under `SlurmdParameters=contain_spank` (24.11) `task_exit` is a
//! child that shares memory with slurmstepd, as `task_post_fork` and `user_init` would be. Never
//! export `init` or `fini`: Slurm's loader calls them.
#![allow(non_upper_case_globals)]

mod host;
pub(crate) mod spawn;

use crate::handle::{Context, Level, Verdict};
use crate::plugin::{self, Callback};
use crate::state::PluginState;
use crate::this_node::ThisNode;
use host::Handle;
use mpsd_core::request::Key;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, TryLockError};

/// `[a-z0-9_]`, part of the options' names in the environment (`_SLURM_SPANK_OPTION_mps_…`): never
/// to be renamed.
#[used]
#[unsafe(no_mangle)]
pub static plugin_name: [u8; 4] = *b"mps\0";

#[used]
#[unsafe(no_mangle)]
pub static plugin_type: [u8; 6] = *b"spank\0";

/// The Slurm release that the plugin claims to be built for: `major << 16 | minor << 8 | micro`,
/// here 22.05. Slurm compares major and minor with its own (`src/common/plugin.c`, `_verify_syms`).
/// The plugin differs between releases in nothing else, so it is linked once, and packaging writes
/// these four bytes (little endian, in `.rodata`) for each release.
#[used]
#[unsafe(no_mangle)]
pub static plugin_version: u32 = 0x16_05_00;

/// Never waited for: a task's forked child may find it locked by a thread that it does not have.
static STATE: Mutex<Option<PluginState>> = Mutex::new(None);

/// Turns a panic into one line of Slurm's log instead of a backtrace on the user's terminal.
fn quiet_panics() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|at| format!(" at {at}"));
        let place = place.unwrap_or_default();
        let line = format!("internal error{place}; please report it");
        host::log(Level::Error, &line);
    }));
}

/// A failure is exactly -1: up to Slurm 24.11 only negative values count, later all but 0 do.
pub fn guard(callback: impl FnOnce(&mut PluginState) -> Verdict) -> c_int {
    quiet_panics();
    match contain(callback) {
        Verdict::Continue => 0,
        Verdict::Fail => -1,
        // SAFETY: ends this process, which is the callback's own (see `Verdict::EndProcess`),
        // without running the exit handlers that it inherited from slurmstepd.
        Verdict::EndProcess => unsafe { nix::libc::_exit(1) },
    }
}

/// A panic, or a locked state, is a failure. A panic leaves the state usable.
fn contain(callback: impl FnOnce(&mut PluginState) -> Verdict) -> Verdict {
    let contained = catch_unwind(AssertUnwindSafe(|| {
        let mut state = match STATE.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Verdict::Fail,
        };
        callback(state.get_or_insert_with(|| PluginState::new(&[])))
    }));
    contained.unwrap_or(Verdict::Fail)
}

/// One option was given: at submission (`remote` 0), or as it arrives on a node.
pub extern "C" fn option_callback(number: c_int, argument: *const c_char, remote: c_int) -> c_int {
    // SAFETY: Slurm passes NULL or the option's argument, alive during the callback.
    let argument = unsafe { host::text(argument) };
    guard(|state| {
        let number = usize::try_from(number).ok();
        let key = number.and_then(|number| Key::ALL.get(number));
        let refused = key.and_then(|key| state.take(*key, argument.as_deref(), remote != 0));
        let Some(refusal) = refused else {
            return Verdict::Continue;
        };
        host::log(Level::Error, &refusal.to_string());
        match host::context() {
            // A refusal of the user's command line: `optional` does not ignore an option's
            // callback.
            Context::Local | Context::Allocator | Context::Remote => Verdict::Fail,
            _ => Verdict::Continue,
        }
    })
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
    let text = |word: &*const c_char| unsafe { host::text(*word) };
    words.iter().filter_map(text).collect()
}

macro_rules! callbacks {
    ($($(#[$doc:meta])* $name:ident => $callback:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Slurm calls it with its own handle and the `count` words of plugstack.conf.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(spank: host::Spank, count: c_int, line: *const *const c_char) -> c_int {
            // SAFETY: Slurm's own words, alive during the callback.
            let words = unsafe { words(count, line) };
            guard(|state| {
                plugin::call(Callback::$callback, &mut Handle(spank, option_callback), &ThisNode, state, &words)
            })
        }
    )*};
}

callbacks! {
    /// Every context but job_script, before options are read.
    slurm_spank_init => Init;
    /// srun, sbatch, salloc, and slurmstepd as root: the options are read.
    slurm_spank_init_post_opt => InitPostOpt;
    /// `slurmstepd spank prolog`, root.
    slurm_spank_job_prolog => JobProlog;
    /// `slurmstepd spank epilog`, root.
    slurm_spank_job_epilog => JobEpilog;
    /// The forked child of a task, as the user, just before exec.
    slurm_spank_task_init => TaskInit;
    /// slurmstepd, root: a task has ended, and the step's standard error is still there.
    slurm_spank_task_exit => TaskExit;
    /// The end of slurmstepd (root), srun, sbatch, salloc.
    slurm_spank_exit => Exit;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_fails_its_own_callback_and_no_later_one() {
        let taken = contain(|state| {
            state.step.own_daemon = true;
            // As in a task's child that was forked while another thread had the state.
            contain(|_| Verdict::Continue)
        });
        assert_eq!(taken, Verdict::Fail);
        let kept = |state: &mut PluginState| match state.step.own_daemon {
            true => Verdict::Continue,
            false => Verdict::EndProcess,
        };
        assert_eq!(contain(kept), Verdict::Continue);
        assert_eq!(contain(|_| panic!("on purpose")), Verdict::Fail);
        assert_eq!(contain(kept), Verdict::Continue);
    }
}
