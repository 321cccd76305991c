//! What still runs of a process. When it is killed, its first thread may end while another waits in the kernel, in a dead
//! driver for one: `/proc/PID` then looks like a process that has ended, and it holds its memory and its GPU.

use super::{Process, ProcessError, Stat, State};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

/// More threads than any server has that is looked at.
const MOST: usize = 4096;
/// Most that is read of a kernel stack. Bytes.
const STACK: usize = 16 * 1024;

impl Process {
    /// State; None when the process is gone. Defunct only if all of its threads have ended; otherwise the state of one
    /// that has not, of one in state D if there is any.
    pub fn state(&self) -> Result<Option<State>, ProcessError> {
        let Some(stat) = self.stat()? else {
            return Ok(None);
        };
        if stat.state != State::Defunct || stat.threads <= 1 {
            return Ok(Some(stat.state));
        }
        Ok(Some(self.living_thread()?.map_or(stat.state, |(_, state)| state)))
    }

    /// The symbols on the kernel stacks of all its threads that have not ended, one line each; empty where the kernel does
    /// not tell.
    pub fn kernel_stacks(&self) -> Result<String, ProcessError> {
        let mut all = String::new();
        for (thread, _) in self.living_threads()? {
            if let Ok(text) = super::read_at(&self.directory, &format!("task/{thread}/stack"), STACK) {
                all.push_str(&String::from_utf8_lossy(&text));
            }
        }
        Ok(all)
    }

    /// What its files in `/proc/PID` are reached by: `""`, or `task/TID/` where the first thread has ended and another
    /// lives: the first thread's `exe` and `environ` are empty then.
    pub(super) fn thread_prefix(&self) -> Result<String, ProcessError> {
        let outlived = self
            .stat()?
            .is_some_and(|stat| stat.state == State::Defunct && stat.threads > 1);
        let thread = if outlived { self.living_thread()? } else { None };
        Ok(thread.map_or_else(String::new, |(thread, _)| format!("task/{thread}/")))
    }

    /// A thread that has not ended, one in state D before all others.
    fn living_thread(&self) -> Result<Option<(i32, State)>, ProcessError> {
        let living = self.living_threads()?;
        let waiting = living
            .iter()
            .find(|(_, state)| *state == State::Uninterruptible)
            .copied();
        Ok(waiting.or(living.last().copied()))
    }

    /// The threads that have not ended.
    pub(in crate::sys) fn living_threads(&self) -> Result<Vec<(i32, State)>, ProcessError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let listing = match openat(&self.directory, "task", flags, Mode::empty()) {
            Ok(fd) => nix::dir::Dir::from_fd(fd),
            Err(Errno::ENOENT | Errno::ESRCH) => return Ok(Vec::new()),
            Err(errno) => Err(errno),
        };
        let mut listing = listing.map_err(|errno| self.fail("list the threads of", errno))?;
        let mut living = Vec::new();
        for entry in listing.iter().flatten().take(MOST) {
            let Some(thread) = entry.file_name().to_str().ok().and_then(|n| n.parse().ok()) else {
                continue;
            };
            let stat = super::read_at(&self.directory, &format!("task/{thread}/stat"), 4096);
            match stat.ok().and_then(|text| Stat::parse(&text)).map(|s| s.state) {
                None | Some(State::Defunct | State::Dead) => {}
                Some(state) => living.push((thread, state)),
            }
        }
        Ok(living)
    }
}
