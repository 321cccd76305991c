//! Other processes, known by pid *and* start time, and read through a descriptor of `/proc/PID`.

use super::deadline::Deadline;
use super::descriptors::{self, read_at, write_at};
use super::raw::{self, Exit};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use rustix::fs::{AtFlags, StatxFlags, makedev, statx};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

mod stat;
pub use stat::{Entry, Executable, FileRef, ProcessId, ProcessTable, Stat, State, Uids};

const MOST_THREADS: usize = 4096;
const STACK: usize = 16 * 1024;

impl ProcessId {
    /// `None`: it is gone, cannot be read, or another process has its pid.
    pub fn open(self) -> Option<Process> {
        Process::find(self.pid).filter(|process| process.id == self)
    }
}

#[derive(Debug)]
pub struct ProcessWatch(OwnedFd);

impl ProcessWatch {
    /// `None`: gone, no descriptor is left, or only a parent learns the end (before Linux 6.13;
    /// 6.13 and 6.14 do not tell how).
    pub fn of(pid: i32) -> Option<Self> {
        let pidfd = raw::pidfd_open(pid).ok()?;
        raw::pidfd_end(pidfd.as_fd()).ok()?;
        Some(Self(pidfd))
    }

    /// Polled for no event, it wakes (POLLHUP) when the process's parent has waited for it.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// `None`: its parent has not waited for it yet. `Some(None)`: the kernel does not tell how.
    pub fn end(&self) -> Option<Option<Exit>> {
        match raw::pidfd_end(self.0.as_fd()) {
            Ok(None) => None,
            Ok(end) => Some(end),
            Err(_) => Some(None),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    pub state: char,
    /// Its kernel stack, innermost first (`[<0>] fuse_simple_request+0x…`); may be hidden.
    pub stack: String,
}

/// A process held by a descriptor of its `/proc` directory and a pidfd. Reads fail once it is gone.
#[derive(Debug)]
pub struct Process {
    id: ProcessId,
    directory: OwnedFd,
    pidfd: Option<OwnedFd>,
}

/// The answer `None` means that the process is gone, or that the kernel does not let us read that.
impl Process {
    pub fn find(pid: i32) -> Option<Self> {
        if pid <= 0 {
            return None;
        }
        // The pidfd comes first: if its process is still there afterwards, the directory is of the
        // same process.
        let pidfd = match raw::pidfd_open(pid) {
            Ok(fd) => Some(fd),
            Err(rustix::io::Errno::SRCH) => return None,
            // Not a process but a thread, or a kernel (or a filter) without the call.
            Err(_) => None,
        };
        let flags = OFlag::O_DIRECTORY | OFlag::O_PATH | OFlag::O_CLOEXEC;
        let directory = open(format!("/proc/{pid}").as_str(), flags, Mode::empty()).ok()?;
        let mut process = Self {
            id: ProcessId { pid, start_time: 0 },
            directory,
            pidfd,
        };
        process.id = process.stat()?.id;
        let is_gone = |fd: &OwnedFd| raw::pidfd_signal(fd.as_fd(), 0) == Err(Errno::ESRCH);
        (!process.pidfd.as_ref().is_some_and(is_gone)).then_some(process)
    }

    pub fn id(&self) -> ProcessId {
        self.id
    }

    pub fn stat(&self) -> Option<Stat> {
        Stat::parse(&self.read("stat", 4096)?)
    }

    pub fn uids(&self) -> Option<Uids> {
        stat::parse_uids(&self.read("status", 65_536)?)
    }

    pub fn groups(&self) -> Option<Vec<u32>> {
        stat::ids(&self.read("status", 1 << 20)?, "Groups:")
    }

    /// The file it runs; `None` also for a defunct process and a kernel thread.
    pub fn executable(&self) -> Option<Executable> {
        let exe = self.thread_prefix() + "exe";
        // Without a question to a network server or a user's FUSE process.
        let flags = AtFlags::STATX_DONT_SYNC;
        let about = statx(&self.directory, &exe, flags, StatxFlags::INO).ok()?;
        let path = nix::fcntl::readlinkat(&self.directory, exe.as_str()).ok()?;
        Some(Executable {
            file: FileRef {
                device: makedev(about.stx_dev_major, about.stx_dev_minor),
                inode: about.stx_ino,
            },
            path: path.into(),
        })
    }

    /// One variable of its first environment within `cap` bytes: a hint, never proof. It hangs
    /// while a thread hangs with the lock of the memory map. A user can cause that: see
    /// [`super::guard::ask()`].
    pub fn environment_variable(&self, name: &str, cap: usize) -> Option<OsString> {
        let block = self.read(&(self.thread_prefix() + "environ"), cap)?;
        let mut entries = block.split(|byte| *byte == 0);
        let value =
            entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        Some(OsString::from_vec(value.to_vec()))
    }

    /// Its first bytes, which it can change. It can hang as [`Process::environment_variable`] can.
    pub fn command_line(&self, cap: usize) -> Option<Vec<u8>> {
        self.read(&(self.thread_prefix() + "cmdline"), cap)
    }

    pub fn cgroups(&self) -> Option<Vec<PathBuf>> {
        let text = self.read("cgroup", 65_536)?;
        let path = |line: &[u8]| {
            Some(OsString::from_vec(line.splitn(3, |b| *b == b':').nth(2)?.to_vec()).into())
        };
        Some(text.split(|b| *b == b'\n').filter_map(path).collect())
    }

    pub fn signal(&self, signal: Signal) -> bool {
        match &self.pidfd {
            Some(pidfd) => raw::pidfd_signal(pidfd.as_fd(), signal as i32).is_ok(),
            // The narrowest race that such a kernel allows.
            None => self.stat().is_some() && kill(Pid::from_raw(self.id.pid), signal).is_ok(),
        }
    }

    /// Waits until it has ended: reaped or defunct. False when `deadline` passes first.
    pub fn wait_gone(&self, deadline: Deadline) -> bool {
        if let Some(pidfd) = &self.pidfd {
            return descriptors::readable(pidfd.as_fd(), deadline) != Ok(false);
        }
        while !matches!(self.state(), None | Some(State::Defunct | State::Dead)) {
            if !deadline.sleep(Duration::from_millis(5)) {
                return false;
            }
        }
        true
    }

    /// Defunct only if all of its threads have ended. The first thread of a killed process may end
    /// while another waits in a dead driver, and still holds its GPU.
    pub fn state(&self) -> Option<State> {
        let stat = self.stat()?;
        if stat.state != State::Defunct || stat.threads <= 1 {
            return Some(stat.state);
        }
        Some(self.living_thread().map_or(stat.state, |(_, state)| state))
    }

    /// Its threads that have not ended. Reading a stack can hang behind an exec(2) (`lock_trace`).
    pub fn threads(&self) -> Option<Vec<Thread>> {
        let read = |(thread, state): (i32, State)| {
            let stack = self.read(&format!("task/{thread}/stack"), STACK);
            Thread {
                state: state.letter(),
                stack: String::from_utf8_lossy(&stack.unwrap_or_default()).into_owned(),
            }
        };
        Some(self.living_threads()?.into_iter().map(read).collect())
    }

    /// `task/TID/` of a living thread if the first one has ended, whose `exe` is empty then.
    fn thread_prefix(&self) -> String {
        let outlived = |stat: &Stat| stat.state == State::Defunct && stat.threads > 1;
        let outlived = self.stat().filter(outlived);
        let thread = outlived.and_then(|_| self.living_thread());
        thread.map_or_else(String::new, |(thread, _)| format!("task/{thread}/"))
    }

    fn living_thread(&self) -> Option<(i32, State)> {
        let living = self.living_threads()?;
        let waiting = living
            .iter()
            .find(|(_, state)| *state == State::Uninterruptible);
        waiting.or(living.last()).copied()
    }

    pub(super) fn living_threads(&self) -> Option<Vec<(i32, State)>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let listing = match openat(&self.directory, "task", flags, Mode::empty()) {
            Err(Errno::ENOENT | Errno::ESRCH) => return Some(Vec::new()),
            listing => listing.ok()?,
        };
        let mut listing = nix::dir::Dir::from_fd(listing).ok()?;
        let entries = listing.iter().flatten().take(MOST_THREADS);
        let living = entries.filter_map(|entry| {
            let thread = entry.file_name().to_str().ok()?.parse().ok()?;
            let stat = Stat::parse(&self.read(&format!("task/{thread}/stat"), 4096)?)?;
            let ended = matches!(stat.state, State::Defunct | State::Dead);
            (!ended).then_some((thread, stat.state))
        });
        Some(living.collect())
    }

    fn read(&self, file: &str, cap: usize) -> Option<Vec<u8>> {
        read_at(&self.directory, file, cap).ok()
    }

    pub(super) fn write(&self, file: &str, text: &str) -> Result<(), Errno> {
        write_at(&self.directory, file, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{STRANGER, alone, as_stranger, outlived_by_a_thread, soon, wait_until};
    use std::os::unix::fs::MetadataExt;

    fn sleeper() -> crate::spawn::Child {
        let mut spawn = as_stranger("/bin/sleep", &["60"]);
        spawn.env = vec![("MARK".into(), "a b".into()), ("OTHER".into(), "x".into())];
        spawn.start(soon()).unwrap()
    }

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let line = b"12 (a) b (\n) Z 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 0 0\n";
        let (pid, start_time) = (12, 4711);
        let stat = Stat {
            id: ProcessId { pid, start_time },
            name: "a) b (\n".into(),
            state: State::Defunct,
            threads: 1,
            parent: 7,
        };
        assert_eq!(Stat::parse(line), Some(stat));
        assert_eq!(Stat::parse(b"12 (a) Z 7"), None);
        assert_eq!(Stat::parse(b""), None);
    }

    #[test]
    fn a_live_process_is_read_and_a_recycled_pid_is_not() {
        let _alone = alone();
        let mut child = sleeper();
        let process = child.id().unwrap().open().unwrap();
        let uids = process.uids().unwrap();
        assert_eq!([uids.real, uids.effective], [STRANGER; 2]);
        assert_eq!(process.environment_variable("MARK", 4096).unwrap(), "a b");
        assert_eq!(process.environment_variable("MAR", 4096), None);
        let file = std::fs::metadata("/bin/sleep").unwrap();
        let exe = process.executable().unwrap();
        assert_eq!((exe.file.device, exe.file.inode), (file.dev(), file.ino()));
        assert!(!process.cgroups().unwrap().is_empty());
        let mut other = process.id();
        other.start_time += 1;
        assert!(other.open().is_none(), "same pid, another process");
        assert!(Process::find(-1).is_none() && Process::find(0).is_none());

        let table = ProcessTable::scan().unwrap();
        let own = nix::unistd::getpid().as_raw();
        let is_child = |entry: &Entry| entry.stat.id == process.id() && entry.uids == uids;
        assert!(table.children(own).any(is_child));
        assert!(table.of_user(STRANGER).any(is_child));
        assert!(table.descendants(1).into_iter().any(is_child));

        assert!(!process.wait_gone(Deadline::after_ms(20)));
        assert!(process.signal(Signal::SIGSTOP));
        wait_until(|| process.state() == Some(State::Stopped));
        assert!(process.signal(Signal::SIGKILL), "though it is stopped");
        assert!(process.wait_gone(soon()));
        assert_eq!(process.state(), Some(State::Defunct));
        assert_eq!(process.executable(), None);
        child.wait(soon()).unwrap();
        assert_eq!(process.state(), None);
        assert!(!process.signal(Signal::SIGKILL));
        assert!(process.id().open().is_none());
    }

    /// As on kernels before 5.3, RHEL 8's for one.
    #[test]
    fn without_pidfds_the_answers_are_the_same() {
        let _alone = alone();
        let mut child = sleeper();
        let mut process = child.id().unwrap().open().unwrap();
        process.pidfd = None;
        assert!(!process.wait_gone(Deadline::after_ms(20)));
        child.pidfd = None;
        assert_eq!(child.wait(Deadline::after_ms(20)), None);
        assert!(process.signal(Signal::SIGKILL));
        assert!(process.wait_gone(soon()));
        assert_eq!(child.wait(soon()), Some(Exit::Signal(9)));
        assert!(!process.signal(Signal::SIGKILL));
        assert!(process.wait_gone(Deadline::after_ms(0)));
        assert!(!child.signal(Signal::SIGTERM));
    }

    /// Like a server that was killed while one of its threads waits in the driver.
    #[test]
    fn a_process_lives_while_any_of_its_threads_does() {
        let _alone = alone();
        let mut child = outlived_by_a_thread(STRANGER);
        let process = Process::find(child.pid()).unwrap();
        wait_until(|| process.state() == Some(State::Sleeping));
        let exe = process.executable().unwrap();
        assert_eq!(exe.path, std::env::current_exe().unwrap());
        // The living thread sleeps. If the kernel shows stacks, its stack says so.
        let threads = process.threads().unwrap();
        assert_eq!((threads.len(), threads[0].state), (1, 'S'));
        let stacks = &threads[0].stack;
        match std::fs::read("/proc/self/stack") {
            Ok(_) => assert!(stacks.contains("nanosleep"), "{stacks}"),
            Err(_) => assert_eq!(stacks, ""),
        }
        assert!(!process.wait_gone(Deadline::after_ms(20)));
        assert!(process.signal(Signal::SIGKILL));
        assert!(process.wait_gone(soon()));
        assert_eq!(process.state(), Some(State::Defunct));
        assert_eq!(child.wait(soon()), Some(Exit::Signal(9)));
    }
}
