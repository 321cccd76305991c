//! What still runs of a process. When it is killed, its first thread may end while another waits in the kernel, in a dead
//! driver for one: `/proc/PID` then looks like a process that has ended, and it holds its memory and its GPU.

use super::{Process, Stat, State};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};

/// More threads than any server has that is looked at.
const MOST: usize = 4096;
/// Most that is read of a kernel stack. Bytes.
const STACK: usize = 16 * 1024;

/// A thread at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// The letter of its state, as `ps` shows it.
    pub state: char,
    /// The symbols on its kernel stack, innermost first, one a line (`[<0>] fuse_simple_request+0x…`, a module's with its
    /// name behind); empty where the kernel does not tell.
    pub stack: String,
}

impl Process {
    /// State. Defunct only if all of its threads have ended; otherwise the state of one that has not, of one in state D if
    /// there is any.
    pub fn state(&self) -> Option<State> {
        let stat = self.stat()?;
        if stat.state != State::Defunct || stat.threads <= 1 {
            return Some(stat.state);
        }
        Some(self.living_thread().map_or(stat.state, |(_, state)| state))
    }

    /// Its threads that have not ended; none of a process that is gone. Reading a stack can
    /// hang: behind an exec(2) of that process that does not come to its end (Linux, `fs/proc/base.c`, `lock_trace`).
    pub fn threads(&self) -> Option<Vec<Thread>> {
        let living = self.living_threads()?;
        let read = |(thread, state): (i32, State)| {
            let stack = self.read(&format!("task/{thread}/stack"), STACK);
            Thread {
                state: state.letter(),
                stack: String::from_utf8_lossy(&stack.unwrap_or_default()).into_owned(),
            }
        };
        Some(living.into_iter().map(read).collect())
    }

    /// What its files in `/proc/PID` are reached by: `""`, or `task/TID/` where the first thread has ended and another
    /// lives: the first thread's `exe` and `environ` are empty then.
    pub(super) fn thread_prefix(&self) -> String {
        let outlived = |stat: &Stat| stat.state == State::Defunct && stat.threads > 1;
        let thread = self.stat().filter(outlived).and_then(|_| self.living_thread());
        thread.map_or_else(String::new, |(thread, _)| format!("task/{thread}/"))
    }

    /// A thread that has not ended, one in state D before all others.
    fn living_thread(&self) -> Option<(i32, State)> {
        let living = self.living_threads()?;
        let waiting = living.iter().find(|(_, state)| *state == State::Uninterruptible);
        waiting.or(living.last()).copied()
    }

    /// The threads that have not ended; none of a process that is gone.
    pub(in crate::sys) fn living_threads(&self) -> Option<Vec<(i32, State)>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let listing = match openat(&self.directory, "task", flags, Mode::empty()) {
            Err(Errno::ENOENT | Errno::ESRCH) => return Some(Vec::new()),
            listing => listing.ok()?,
        };
        let mut listing = nix::dir::Dir::from_fd(listing).ok()?;
        let mut living = Vec::new();
        for entry in listing.iter().flatten().take(MOST) {
            let Some(thread) = entry.file_name().to_str().ok().and_then(|n| n.parse().ok()) else {
                continue;
            };
            let stat = self.read(&format!("task/{thread}/stat"), 4096);
            match stat.and_then(|text| Stat::parse(&text)).map(|s| s.state) {
                None | Some(State::Defunct | State::Dead) => {}
                Some(state) => living.push((thread, state)),
            }
        }
        Some(living)
    }
}
