//! Around each callback: no panic leaves it, and all callbacks of a process share one state.

use super::abi;
use crate::handle::{Context, Level, Verdict};
use crate::plugin;
use crate::state::PluginState;
use mpsd_core::request::Key;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

/// Only tried, never waited for: a task's forked child may find it locked by a thread that it does not have.
static STATE: Mutex<Option<PluginState>> = Mutex::new(None);

/// Runs `body` on the state. A panic that ended an earlier callback leaves it usable.
fn with_state<T>(body: impl FnOnce(&mut PluginState) -> T) -> Option<T> {
    let mut state = match STATE.try_lock() {
        Ok(state) => state,
        Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
        Err(TryLockError::WouldBlock) => return None,
    };
    Some(body(state.get_or_insert_with(|| PluginState::new(&[]))))
}

/// Turns a panic into one line of Slurm's log instead of a backtrace on the user's terminal.
fn quiet_panics() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    std::panic::set_hook(Box::new(|info| {
        let place = info
            .location()
            .map_or_else(String::new, |at| format!(" at {}:{}", at.file(), at.line()));
        abi::log(Level::Error, &format!("internal error{place}; please report it"));
    }));
}

/// Runs one callback. A failure is exactly -1: up to Slurm 24.11 only negative values count, later all but 0 do.
pub fn guard(callback: impl FnOnce(&mut PluginState) -> Verdict) -> c_int {
    quiet_panics();
    match contain(callback) {
        Verdict::Continue => 0,
        Verdict::Fail => -1,
        // SAFETY: ends this process, which is the callback's own (see `Verdict::Leave`), without running the exit
        // handlers that it inherited from slurmstepd.
        Verdict::Leave => unsafe { nix::libc::_exit(1) },
    }
}

/// Runs a callback on the state; a panic, or a locked state, is a failure.
fn contain(callback: impl FnOnce(&mut PluginState) -> Verdict) -> Verdict {
    catch_unwind(AssertUnwindSafe(|| with_state(callback)))
        .ok()
        .flatten()
        .unwrap_or(Verdict::Fail)
}

/// One option was given: at submission (`remote` 0), or as it arrives on a node.
pub extern "C" fn option_callback(number: c_int, argument: *const c_char, remote: c_int) -> c_int {
    // SAFETY: Slurm passes NULL or the option's argument, alive during the callback.
    let argument = unsafe { abi::text(argument) };
    guard(|state| {
        let key = usize::try_from(number)
            .ok()
            .and_then(|number| Key::ALL.get(number));
        let refused = key.and_then(|key| plugin::option(state, *key, argument.as_deref(), remote != 0));
        refused.map_or(Verdict::Continue, |line| {
            abi::log(Level::Error, &line);
            match abi::context() {
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
        let kept = |state: &mut PluginState| match state.own_daemon {
            true => Verdict::Continue,
            false => Verdict::Leave,
        };
        assert_eq!(contain(kept), Verdict::Continue);
        assert_eq!(contain(|_| panic!("on purpose")), Verdict::Fail);
        assert_eq!(contain(kept), Verdict::Continue);
    }
}
