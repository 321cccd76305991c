//! Processes of others: known by pid *and* start time, read through a descriptor of `/proc/PID`, so that a pid
//! used again is never taken for the process that had it.

use super::deadline::Deadline;
use super::{descriptors, raw};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

mod stat;
mod table;
mod threads;
pub use stat::{Executable, Membership, ProcessId, Stat, State, Uids};
#[cfg(test)]
pub(super) use table::Entry;
pub use table::ProcessTable;
pub use threads::Thread;

/// What could not be read of a process, or done to it.
#[derive(Debug, thiserror::Error)]
#[error("cannot {act} process {pid}: {errno}")]
pub struct ProcessError {
    /// "read", "signal" …
    pub act: &'static str,
    /// The process.
    pub pid: i32,
    /// The kernel's word.
    pub errno: Errno,
}

impl ProcessId {
    /// Takes hold of this process; None if it is gone, or its pid has passed to another.
    pub fn open(self) -> Result<Option<Process>, ProcessError> {
        Ok(Process::find(self.pid)?.filter(|process| process.id == self))
    }
}

/// A process held by a descriptor of its `/proc` directory (and a pidfd where the kernel has them): reads fail
/// with "gone" as soon as it is reaped, whoever has its pid then.
#[derive(Debug)]
pub struct Process {
    id: ProcessId,
    directory: OwnedFd,
    pidfd: Option<OwnedFd>,
}

impl Process {
    /// Takes hold of whatever process has this pid now.
    pub fn find(pid: i32) -> Result<Option<Self>, ProcessError> {
        if pid <= 0 {
            return Ok(None);
        }
        let fail = |errno| ProcessError {
            act: "read",
            pid,
            errno,
        };
        // The pidfd first: if the directory's process then matches it, both are the same for ever.
        let pidfd = match raw::pidfd_open(pid) {
            Ok(fd) => Some(fd),
            Err(Errno::ESRCH) => return Ok(None),
            // Not a process but a thread, or a kernel (or a filter) without the call.
            Err(_) => None,
        };
        let flags = OFlag::O_DIRECTORY | OFlag::O_PATH | OFlag::O_CLOEXEC;
        let directory = match open(format!("/proc/{pid}").as_str(), flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::ENOENT | Errno::ESRCH) => return Ok(None),
            Err(errno) => return Err(fail(errno)),
        };
        let mut process = Self {
            id: ProcessId { pid, start_time: 0 },
            directory,
            pidfd,
        };
        let Some(stat) = process.stat()? else {
            return Ok(None);
        };
        process.id = stat.id;
        let same = process
            .pidfd
            .as_ref()
            .is_none_or(|fd| raw::pidfd_signal(fd.as_fd(), 0) != Err(Errno::ESRCH));
        Ok(same.then_some(process))
    }

    /// Pid and start time.
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// `/proc/PID/stat`; None when the process is gone.
    pub fn stat(&self) -> Result<Option<Stat>, ProcessError> {
        let Some(text) = self.read("stat", 4096)? else {
            return Ok(None);
        };
        Stat::parse(&text)
            .map(Some)
            .ok_or(self.fail("understand the state of", Errno::EINVAL))
    }

    /// User ids; None when the process is gone.
    pub fn uids(&self) -> Result<Option<Uids>, ProcessError> {
        let Some(text) = self.read("status", 65_536)? else {
            return Ok(None);
        };
        stat::parse_uids(&text)
            .map(Some)
            .ok_or(self.fail("understand the user of", Errno::EINVAL))
    }

    /// The file it runs; None when the process is gone, defunct or a kernel thread. The file's file system is not asked.
    pub fn executable(&self) -> Result<Option<Executable>, ProcessError> {
        let exe = self.thread_prefix()? + "exe";
        let name = std::ffi::CString::new(exe.as_str()).map_err(|_| self.fail("name", Errno::EINVAL))?;
        let (device, inode) = match raw::remembered_file(self.directory.as_fd(), &name) {
            Ok(file) => file,
            Err(Errno::ENOENT | Errno::ESRCH) => return Ok(None),
            Err(errno) => return Err(self.fail("read the executable of", errno)),
        };
        let path = match nix::fcntl::readlinkat(&self.directory, exe.as_str()) {
            Ok(path) => PathBuf::from(path),
            Err(Errno::ENOENT | Errno::ESRCH) => return Ok(None),
            Err(errno) => return Err(self.fail("read the executable of", errno)),
        };
        Ok(Some(Executable { device, inode, path }))
    }

    /// The value of one variable in its first environment, which the process may have overwritten: a hint, never
    /// proof. None when unset, gone, or beyond the first `cap` bytes. Hangs for as long as a thread of the process hangs
    /// with the lock of its memory map held, which a user can bring about: see [`super::guard::ask()`].
    pub fn environment_variable(&self, name: &str, cap: usize) -> Result<Option<OsString>, ProcessError> {
        let Some(block) = self.read(&(self.thread_prefix()? + "environ"), cap)? else {
            return Ok(None);
        };
        let found = block.split(|byte| *byte == 0).find_map(|entry| {
            entry
                .strip_prefix(name.as_bytes())?
                .strip_prefix(b"=")
                .map(|value| OsString::from_vec(value.to_vec()))
        });
        Ok(found)
    }

    /// Its cgroups, one for each hierarchy; None when gone.
    pub fn cgroups(&self) -> Result<Option<Vec<Membership>>, ProcessError> {
        Ok(self.read("cgroup", 65_536)?.map(|text| Membership::parse(&text)))
    }

    /// Sends `signal`; false when the process is gone.
    pub fn signal(&self, signal: Signal) -> Result<bool, ProcessError> {
        let sent = match &self.pidfd {
            Some(pidfd) => raw::pidfd_signal(pidfd.as_fd(), signal as i32),
            // The narrowest race that such a kernel allows: looked at just before.
            None => match self.stat()? {
                Some(_) => nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.id.pid), signal),
                None => Err(Errno::ESRCH),
            },
        };
        match sent {
            Ok(()) => Ok(true),
            Err(Errno::ESRCH) => Ok(false),
            Err(errno) => Err(self.fail("signal", errno)),
        }
    }

    /// Waits until it has ended: reaped, or defunct (which [`Process::state`] tells). False when `deadline`
    /// passes first.
    pub fn wait_gone(&self, deadline: Deadline) -> Result<bool, ProcessError> {
        if let Some(pidfd) = &self.pidfd {
            return descriptors::readable(pidfd.as_fd(), deadline)
                .map_err(|errno| self.fail("wait for", errno));
        }
        loop {
            if matches!(self.state()?, None | Some(State::Defunct | State::Dead)) {
                return Ok(true);
            }
            if !deadline.sleep(Duration::from_millis(5)) {
                return Ok(false);
            }
        }
    }

    /// Up to `cap` bytes of one file of `/proc/PID`; None when the process is gone.
    fn read(&self, file: &str, cap: usize) -> Result<Option<Vec<u8>>, ProcessError> {
        match read_at(&self.directory, file, cap) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Errno::ENOENT | Errno::ESRCH) => Ok(None),
            Err(errno) => Err(self.fail("read", errno)),
        }
    }

    /// Writes a file of its `/proc` directory.
    pub(super) fn write(&self, file: &str, text: &str) -> Result<(), Errno> {
        let file = openat(
            &self.directory,
            file,
            OFlag::O_WRONLY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?;
        nix::unistd::write(&file, text.as_bytes()).map(drop)
    }

    fn fail(&self, act: &'static str, errno: Errno) -> ProcessError {
        ProcessError {
            act,
            pid: self.id.pid,
            errno,
        }
    }
}

/// Up to `cap` bytes of a file of `/proc`.
pub(super) fn read_at(directory: impl AsFd, file: &str, cap: usize) -> Result<Vec<u8>, Errno> {
    let fd = openat(
        directory,
        file,
        OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW,
        Mode::empty(),
    )?;
    descriptors::read_up_to(&fd, cap)
}

#[cfg(test)]
mod tests;
