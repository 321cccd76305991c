//! Work that goes on after this program has ended.

use super::raw;
use super::stdio;
use nix::errno::Errno;

/// Runs `work` in a process of its own session with standard streams on `/dev/null`, and returns in this one at once.
/// The child keeps this program's descriptors that close on exec (locks, pipes); what was inherited from the scheduler
/// must have been closed before ([`super::stdio::close_inherited`]), or somebody waits for it.
///
/// # Errors
/// As fork(2).
pub fn detach(work: impl FnOnce()) -> Result<(), Errno> {
    match raw::fork()? {
        Some(_) => Ok(()),
        None => {
            let ready = nix::unistd::setsid().is_ok() && stdio::all_to_null().is_ok();
            if ready {
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            }
            raw::exit_now(0)
        }
    }
}
