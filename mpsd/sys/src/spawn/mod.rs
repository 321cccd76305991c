//! Starting a program: exact environment, exact descriptors, identity dropped for good and proved
//! gone.

use super::deadline::{Deadline, Output, readable};
use super::descriptors;
use super::raw::{self, Exit, Pointers};
use mpsd_core::file::FileError;
use mpsd_core::trusted::open_trusted;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use rustix::process::Gid;
use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

mod child;
mod exec;
pub use child::{Child, KillReason};
pub use exec::{Hidden, Identity, Spawn};

const REAP: Duration = Duration::from_millis(500);

#[derive(Debug, thiserror::Error)]
#[error("cannot start '{program}': {why}")]
pub struct SpawnError {
    program: String,
    why: StartFailure,
}

#[derive(Debug, thiserror::Error)]
enum StartFailure {
    #[error("{0}")]
    Invalid(String),
    #[error("{0}: {1}")]
    Parent(&'static str, Errno),
    #[error("{0}: {1}")]
    Child(String, Errno),
    #[error("its process was not ready in time")]
    Late,
    #[error("its process was ended by {0}")]
    Ended(Exit),
    /// It closed its pipe, and SIGKILL does not end it.
    #[error("its process hangs")]
    Hangs,
}

impl SpawnError {
    pub fn errno(&self) -> Option<Errno> {
        match self.why {
            StartFailure::Parent(_, errno) | StartFailure::Child(_, errno) => Some(errno),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildOutput {
    pub exit: Exit,
    pub out: Vec<u8>,
    pub err: Vec<u8>,
}

impl ChildOutput {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned() + &String::from_utf8_lossy(&self.err)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Start(#[from] SpawnError),
    #[error("'{program}' {why}")]
    Killed { program: String, why: KillReason },
}

impl Spawn {
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            ..Self::default()
        }
    }

    /// A program that only root can have put there; started by name, which a script must know.
    pub fn trusted(program: &Path) -> Result<Self, FileError> {
        open_trusted(program).map(|_| Self::new(program))
    }

    /// Gives it these bytes as its whole input. EAGAIN as of [`descriptors::holding`].
    pub fn input(&mut self, bytes: &[u8]) -> Result<(), SpawnError> {
        let held = descriptors::holding(bytes).map_err(self.parent("its input does not fit"));
        self.stdin = Some(held?);
        Ok(())
    }

    /// Returns after exec has succeeded. Kills it at the deadline: its file system may be dead, or
    /// its user may stop it.
    pub fn start(mut self, deadline: Deadline) -> Result<Child, SpawnError> {
        if let Some(identity) = &mut self.identity {
            // In the kernel's order, each once, to be compared with its answer.
            identity.groups.sort_unstable();
            identity.groups.dedup();
        }
        let plan = self.prepare();
        let mut plan = plan.map_err(|what| self.failed(StartFailure::Invalid(what)))?;
        let Some(directory) = &self.cgroup else {
            return self.attempt(&mut plan, None, raw::fork, deadline);
        };
        let fork = || raw::fork_into(directory.as_fd());
        match self.attempt(&mut plan, None, fork, deadline) {
            // An older kernel, or v1; or one that kills a child that is born in a cgroup in which a
            // process was killed before (Linux 6.18). The next child enters the cgroup itself.
            Err(SpawnError {
                why: StartFailure::Parent(..) | StartFailure::Ended(_),
                ..
            }) => {}
            outcome => return outcome,
        }
        let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let procs = openat(directory, "cgroup.procs", flags, Mode::empty())
            .map_err(self.parent("its cgroup does not open"))?;
        self.attempt(&mut plan, Some(&procs), raw::fork, deadline)
    }

    /// Starts it in a session of its own, waits for its end, and reads at most `most` bytes of each
    /// output. Kills what it leaves in that session, which may hold a copy of a pipe.
    pub fn run(self, deadline: Deadline, most: usize) -> Result<ChildOutput, RunError> {
        self.run_unless(None, deadline, most)
    }

    pub fn run_unless(
        mut self,
        stop: Option<BorrowedFd<'_>>,
        deadline: Deadline,
        most: usize,
    ) -> Result<ChildOutput, RunError> {
        let program = self.name();
        let (mut out, stdout) = Output::pipe().map_err(self.parent(NO_PIPE))?;
        let (mut err, stderr) = Output::pipe().map_err(self.parent(NO_PIPE))?;
        self.session = true;
        self.stdout = Some(stdout);
        self.stderr = Some(stderr);
        let mut child = self.start(deadline)?;
        let end = child.listen(&mut [&mut out, &mut err], stop, deadline, most);
        let (out, err) = (out.bytes, err.bytes);
        let output = |exit| ChildOutput { exit, out, err };
        end.map(output)
            .map_err(|why| RunError::Killed { program, why })
    }

    /// One start; the child enters the cgroup by `procs`, if given.
    fn attempt(
        &self,
        plan: &mut exec::Plan<'_>,
        procs: Option<&OwnedFd>,
        fork: impl FnOnce() -> Result<Option<i32>, Errno>,
        deadline: Deadline,
    ) -> Result<Child, SpawnError> {
        let null = descriptors::null().map_err(self.parent("'/dev/null' does not open"))?;
        let (mut report, answer) = Output::pipe().map_err(self.parent(NO_PIPE))?;
        let standard = [&self.stdin, &self.stdout, &self.stderr];
        let inherit = self.inherit.iter();
        let mut keep = self.targets();
        keep.push(0);
        let mut fds = exec::ChildDescriptors {
            standard: standard.map(|fd| fd.as_ref().unwrap_or(&null).as_raw_fd()),
            inherit: inherit.map(|(fd, at)| (fd.as_raw_fd(), *at)).collect(),
            keep,
            cgroup: procs.map(AsRawFd::as_raw_fd),
            report: answer.as_raw_fd(),
            unhidden: None,
        };
        let forked = raw::fork_masked(fork, || exec::run(plan, &mut fds));
        let pid = forked.map_err(self.parent("no process to be had (fork)"))?;
        drop(answer);
        let child = match self.identity {
            Some(_) => Child::adopt(pid),
            None => Child::adopt_as_ours(pid),
        };
        follow(child, &mut report, deadline).map_err(|why| self.failed(why))
    }

    fn name(&self) -> String {
        self.program.display().to_string()
    }

    fn parent(&self, act: &'static str) -> impl FnOnce(Errno) -> SpawnError {
        move |errno| self.failed(StartFailure::Parent(act, errno))
    }

    fn failed(&self, why: StartFailure) -> SpawnError {
        let program = self.name();
        SpawnError { program, why }
    }

    fn targets(&self) -> Vec<RawFd> {
        let mut targets: Vec<_> = self.inherit.iter().map(|(_, target)| *target).collect();
        targets.sort_unstable();
        targets
    }

    fn prepare(&self) -> Result<exec::Plan<'_>, String> {
        let text = |what: &str, bytes: &[u8]| {
            CString::new(bytes).map_err(|_| format!("{what} holds a NUL byte"))
        };
        if !self.program.is_absolute() {
            return Err("its path is not absolute".to_owned());
        }
        let targets = self.targets();
        if let Some(target) = targets.first().filter(|target| **target < 3) {
            return Err(format!("descriptor {target} is one of the standard three"));
        }
        if targets.windows(2).any(|pair| pair.first() == pair.last()) {
            return Err("two descriptors have the same number".to_owned());
        }
        let words = [self.program.as_os_str()].into_iter();
        let words = words.chain(self.args.iter().map(OsString::as_os_str));
        let words = words.map(|word| text("an argument", word.as_bytes()));
        let variable = |(name, value): &(OsString, OsString)| {
            if name.is_empty() || name.as_bytes().contains(&b'=') {
                return Err(format!("'{}' is no name of a variable", name.display()));
            }
            let both = [name.as_bytes(), b"=", value.as_bytes()].concat();
            text("a variable", &both)
        };
        let path = |path: &Path| text("a path", path.as_os_str().as_bytes());
        let hidden = self.hidden.as_ref().map(|hidden| {
            let files: Result<Vec<_>, _> = hidden.files.iter().map(|file| path(file)).collect();
            Ok::<_, String>((path(&hidden.behind)?, files?))
        });
        let groups = self.identity.iter().flat_map(|identity| &identity.groups);
        let groups: Vec<Gid> = groups.map(|group| Gid::from_raw(*group)).collect();
        Ok(exec::Plan {
            spawn: self,
            program: text("its path", self.program.as_os_str().as_bytes())?,
            arguments: Pointers::new(words.collect::<Result<_, _>>()?),
            environment: Pointers::new(self.env.iter().map(variable).collect::<Result<_, _>>()?),
            hidden: hidden.transpose()?,
            found_groups: vec![0; groups.len() + 1],
            groups,
        })
    }
}

const NO_PIPE: &str = "no pipe to be had";

/// Reads the child's report until exec closes the pipe. No byte: the child died before exec.
fn follow(
    mut child: Child,
    report: &mut Output,
    deadline: Deadline,
) -> Result<Child, StartFailure> {
    while let Some(pipe) = report.source() {
        if readable(pipe, deadline) != Ok(true) {
            child.kill(Deadline::after(REAP));
            return Err(StartFailure::Late);
        }
        report.read(usize::MAX);
    }
    let (unhidden, report) = exec::unhidden(&report.bytes);
    child.unhidden = unhidden;
    if let Some((step, errno)) = exec::failure(report) {
        child.wait(Deadline::after(REAP));
        return Err(StartFailure::Child(step, errno));
    }
    if report.is_empty() {
        let end = child.kill(Deadline::after(REAP));
        return Err(end.map_or(StartFailure::Hangs, StartFailure::Ended));
    }
    child.read_id();
    Ok(child)
}

#[cfg(test)]
mod tests;
