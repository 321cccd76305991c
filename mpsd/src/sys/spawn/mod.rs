//! Starting a program: exact environment, exact descriptors, identity dropped for good and proved gone.

use super::confine::Confinement;
use super::deadline::Deadline;
use super::descriptors;
use super::raw::{self, Exit, Pointers};
use mpsd_core::file::FileError;
use mpsd_core::trusted::open_trusted;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

mod child;
mod exec;
mod run;
pub use child::Child;
pub use exec::Identity;
pub(super) use run::listen;
pub use run::{KillReason, RunError};

/// A program to start: with umask 0077, working directory `/`, signals as new, no descriptors but those named, and no
/// protection against the out-of-memory killer (slurmd and pbs_mom have one). A field not set: no identity change, no
/// session of its own, `/dev/null` for a standard descriptor.
#[derive(Debug, Default)]
pub struct Spawn {
    /// Absolute path; no search path is ever looked at.
    pub program: PathBuf,
    /// Arguments after the program's name.
    pub args: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Becomes this user for good before exec.
    pub identity: Option<Identity>,
    /// A session of its own, so that the kill of the caller's group or terminal does not reach it.
    pub session: bool,
    /// Directory of the cgroup to enter before exec.
    pub cgroup: Option<OwnedFd>,
    /// Descriptor 0.
    pub stdin: Option<OwnedFd>,
    /// Descriptor 1.
    pub stdout: Option<OwnedFd>,
    /// Descriptor 2.
    pub stderr: Option<OwnedFd>,
    /// Further descriptors, each with its number there (3 or more); all others are closed.
    pub inherit: Vec<(OwnedFd, RawFd)>,
    /// Raise the soft limit of open files to this, or to the hard limit if that is lower; never lowers it.
    pub nofile: Option<u64>,
    /// What it, and all that it starts, may do no more.
    pub confinement: Option<Confinement>,
}

/// A program that was not started; nothing of it has run.
#[derive(Debug, thiserror::Error)]
#[error("cannot start '{program}': {why}")]
pub struct SpawnError {
    program: String,
    why: Why,
}

/// Why a program was not started.
#[derive(Debug, thiserror::Error)]
enum Why {
    /// Something in its description cannot be.
    #[error("{0}")]
    Invalid(String),
    /// The parent's half failed: a pipe, the cgroup's file, the fork.
    #[error("{0}: {1}")]
    Parent(&'static str, Errno),
    /// The child failed at this step.
    #[error("{0}: {1}")]
    Child(String, Errno),
    /// It was still at it at the end of its time.
    #[error("its process was not ready in time")]
    Late,
    /// It ended without having said that it reached exec.
    #[error("its process was ended by {0}")]
    ChildOutput(Exit),
    /// It closed its pipe and does not end, SIGKILL or not.
    #[error("its process hangs")]
    Hangs,
}

impl SpawnError {
    /// The kernel's word, where it gave one.
    pub fn errno(&self) -> Option<Errno> {
        match self.why {
            Why::Parent(_, errno) | Why::Child(_, errno) => Some(errno),
            Why::Invalid(_) | Why::Late | Why::ChildOutput(_) | Why::Hangs => None,
        }
    }
}

impl Spawn {
    /// A program with nothing but its name.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            ..Self::default()
        }
    }

    /// A program that only root can have put where it is (see [`open_trusted`]). It is checked by descriptor and started by
    /// name: nobody but root can exchange what stands under that name, and a script must know its own.
    ///
    /// # Errors
    /// It is not there, or somebody else could have put it there.
    pub fn trusted(program: &Path) -> Result<Self, FileError> {
        open_trusted(program).map(|_| Self::new(program))
    }

    /// Gives it these bytes to read, and then the end. EAGAIN when they do not fit into a pipe, which holds 4,096 at least.
    pub fn input(&mut self, bytes: &[u8]) -> Result<(), SpawnError> {
        self.stdin = Some(descriptors::holding(bytes).map_err(self.parent("its input does not fit"))?);
        Ok(())
    }

    /// Starts it; returns after exec has succeeded, or kills it at the deadline: a program on a dead network file system
    /// never starts, and a child that has its identity already can be stopped by its user before exec.
    pub fn start(self, deadline: Deadline) -> Result<Child, SpawnError> {
        let plan = self.prepare().map_err(|what| self.failed(Why::Invalid(what)))?;
        let Some(directory) = &self.cgroup else {
            return self.attempt(&plan, None, raw::fork, deadline);
        };
        match self.attempt(&plan, None, || raw::fork_into(directory.as_fd()), deadline) {
            // An older kernel, or a v1 hierarchy; or a kernel that kills a child born in a cgroup in which something was
            // killed before (seen on Linux 6.18). Nothing of the program has run: the child enters the cgroup itself.
            Err(SpawnError {
                why: Why::Parent(..) | Why::ChildOutput(_),
                ..
            }) => {}
            outcome => return outcome,
        }
        let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let procs = openat(directory, "cgroup.procs", flags, Mode::empty())
            .map_err(self.parent("its cgroup does not open"))?;
        self.attempt(&plan, Some(&procs), raw::fork, deadline)
    }

    /// One start by one kind of fork; the child enters the cgroup by `procs` where there is one.
    fn attempt(
        &self,
        plan: &exec::Plan,
        procs: Option<&OwnedFd>,
        fork: impl FnOnce() -> Result<Option<i32>, Errno>,
        deadline: Deadline,
    ) -> Result<Child, SpawnError> {
        let null = descriptors::null().map_err(self.parent("'/dev/null' does not open"))?;
        let (report, answer) =
            nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(self.parent("no pipe to be had"))?;
        let wires = exec::Wires {
            standard: [&self.stdin, &self.stdout, &self.stderr]
                .map(|one| one.as_ref().unwrap_or(&null).as_raw_fd()),
            inherit: self
                .inherit
                .iter()
                .map(|(fd, target)| (fd.as_raw_fd(), *target))
                .collect(),
            cgroup: procs.map(AsRawFd::as_raw_fd),
            report: answer.as_raw_fd(),
        };
        let mut room = exec::Room::new(plan, &wires);
        // No signal may run a handler of ours in the child, or find it half made.
        let mask = raw::block_all().map_err(self.parent("signals cannot be blocked"))?;
        let forked = match fork() {
            Ok(None) => exec::run(plan, &wires, &mut room),
            Ok(Some(pid)) => Ok(pid),
            Err(errno) => Err(errno),
        };
        raw::restore_mask(&mask);
        let pid = forked.map_err(self.parent("no process to be had (fork)"))?;
        drop(answer);
        let child = match self.identity {
            Some(_) => Child::adopt(pid),
            None => Child::adopt_as_ours(pid),
        };
        follow(child, &report, deadline).map_err(|why| self.failed(why))
    }

    fn name(&self) -> String {
        self.program.display().to_string()
    }

    fn parent(&self, act: &'static str) -> impl FnOnce(Errno) -> SpawnError {
        let program = self.name();
        move |errno| SpawnError {
            program,
            why: Why::Parent(act, errno),
        }
    }

    fn failed(&self, why: Why) -> SpawnError {
        let program = self.name();
        SpawnError { program, why }
    }

    /// Everything that needs memory, before the fork.
    fn prepare(&self) -> Result<exec::Plan, String> {
        let text =
            |what: &str, bytes: Vec<u8>| CString::new(bytes).map_err(|_| format!("{what} holds a NUL byte"));
        if !self.program.is_absolute() {
            return Err("its path is not absolute".to_owned());
        }
        if let Some((_, target)) = self.inherit.iter().find(|(_, target)| *target < 3) {
            return Err(format!("descriptor {target} is one of the standard three"));
        }
        let mut targets: Vec<_> = self.inherit.iter().map(|(_, target)| *target).collect();
        targets.sort_unstable();
        if targets.windows(2).any(|pair| pair.first() == pair.last()) {
            return Err("two descriptors have the same number".to_owned());
        }
        let program = text("its path", self.program.as_os_str().as_bytes().to_vec())?;
        let arguments = self
            .args
            .iter()
            .map(|word| text("an argument", word.as_bytes().to_vec()));
        let arguments = std::iter::once(Ok(program.clone())).chain(arguments);
        let variable = |(name, value): &(OsString, OsString)| {
            if name.is_empty() || name.as_bytes().contains(&b'=') {
                return Err(format!("'{}' is no name of a variable", name.display()));
            }
            text("a variable", [name.as_bytes(), b"=", value.as_bytes()].concat())
        };
        Ok(exec::Plan {
            arguments: Pointers::new(arguments.collect::<Result<_, _>>()?),
            program,
            environment: Pointers::new(self.env.iter().map(variable).collect::<Result<_, _>>()?),
            identity: self.identity.clone().map(sorted),
            session: self.session,
            nofile: self.nofile,
            confinement: self.confinement.clone(),
        })
    }
}

/// Groups in the kernel's own order, each once, so that what it answers can be compared.
fn sorted(mut identity: Identity) -> Identity {
    identity.groups.sort_unstable();
    identity.groups.dedup();
    identity
}

/// How long a child that failed, or was killed, may take to be gone.
const REAP: Duration = Duration::from_millis(500);

/// Reads the child's report to its end, which exec makes by closing the pipe: no byte is a child that died on its way.
fn follow(mut started: Child, report: &OwnedFd, deadline: Deadline) -> Result<Child, Why> {
    let Some(words) = read_report(report, deadline) else {
        started.kill(Deadline::after(REAP));
        return Err(Why::Late);
    };
    if let Some((step, errno)) = exec::failure(&words) {
        started.wait(Deadline::after(REAP));
        return Err(Why::Child(step, errno));
    }
    if words.is_empty() {
        let end = started.kill(Deadline::after(REAP));
        return Err(end.map_or(Why::Hangs, Why::ChildOutput));
    }
    started.look();
    Ok(started)
}

/// All that the child wrote before its end of the pipe closed; None at the deadline.
fn read_report(report: &OwnedFd, deadline: Deadline) -> Option<Vec<u8>> {
    let mut words = Vec::new();
    loop {
        let mut some = [0u8; 16];
        if !descriptors::readable(report.as_fd(), deadline).ok()? {
            return None;
        }
        match nix::unistd::read(report, &mut some) {
            Ok(0) => return Some(words),
            Ok(got) => words.extend_from_slice(some.get(..got).unwrap_or_default()),
            Err(Errno::EINTR) => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests;
