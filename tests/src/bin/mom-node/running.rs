//! Processes of the node, killed as a mom kills them. The agent is process 1 and reaps orphans: a
//! zombie would look alive.

use crate::launch::Launch;
use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::pty::{OpenptyResult, openpty};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, pipe, ttyname};
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tests::mom::wire::{Ended, Run, Stream, Victims};

const TICK: Duration = Duration::from_millis(2);

struct Held {
    run: Run,
    started: Instant,
    readers: Vec<OwnedFd>,
    writers: Vec<OwnedFd>,
}

#[derive(Default)]
pub struct Running {
    held: BTreeMap<i32, Held>,
    ended: BTreeMap<i32, Ended>,
    terminal: Option<OpenptyResult>,
    cgroup: Option<String>,
}

impl Running {
    pub fn new(cgroup: Option<String>) -> Self {
        Self {
            cgroup,
            ..Self::default()
        }
    }

    pub fn cgroup(&self) -> Option<&str> {
        self.cgroup.as_deref()
    }

    /// Starts a process; `Ok(Err(..))` if the mom would not start it.
    pub fn start(&mut self, run: Run) -> Result<Result<i32, Ended>> {
        if run.checked
            && let Err(ended) = check(&run.argv[0])
        {
            return Ok(Err(ended));
        }
        let mut launch = Launch {
            passed: Vec::new(),
            terminal: None,
            cgroup: None,
            run: run.clone(),
        };
        let (mut readers, mut writers) = (Vec::new(), Vec::new());
        for _ in &run.leaked {
            let (reader, writer) = pipe().context("pipe")?;
            launch.passed.push(writer.as_raw_fd());
            readers.push(reader);
            writers.push(writer);
        }
        if [&run.stdin, &run.stdout, &run.stderr].contains(&&Stream::Terminal) {
            launch.terminal = Some(self.terminal()?);
        }
        if run.in_mom {
            launch.cgroup.clone_from(&self.cgroup);
        }
        let order = serde_json::to_string(&launch)?;
        let mut command = Command::new("/proc/self/exe");
        command.args(["exec", &order]).env_clear();
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().context("cannot start a process")?;
        let pid = child.id().cast_signed();
        let held = Held {
            run,
            started: Instant::now(),
            readers,
            writers,
        };
        self.held.insert(pid, held);
        Ok(Ok(pid))
    }

    /// Waits for a process until its own time limit, or for `limit`. A tick counts by its nominal
    /// length, so that a process does not seem to hang if the machine itself stood still.
    pub fn wait(&mut self, pid: i32, limit: Duration) -> Ended {
        let mut waited = Duration::ZERO;
        loop {
            self.reap();
            if let Some(ended) = self.ended.get(&pid).copied() {
                return ended;
            }
            if self.at_limit(pid) {
                continue;
            }
            if waited >= limit {
                return Ended::Running;
            }
            std::thread::sleep(TICK);
            waited += TICK;
        }
    }

    /// The mom's SIGKILL at the time limit; no SIGTERM comes first (recorded).
    fn at_limit(&mut self, pid: i32) -> bool {
        let Some(held) = self.held.get(&pid) else {
            return false;
        };
        let limit = Duration::from_millis(held.run.limit_ms);
        if limit.is_zero() || held.started.elapsed() < limit {
            return false;
        }
        match held.run.at_limit {
            Victims::Process => sigkill(pid),
            Victims::Group => sigkill_group(pid),
            Victims::Session => session(pid).into_iter().for_each(sigkill),
        }
        // Reaps all its killed processes; the first is the process itself.
        while let Err(Errno::EINTR) | Ok(WaitStatus::StillAlive) = waitpid(Pid::from_raw(pid), None)
        {
        }
        self.ended.insert(pid, Ended::Limit);
        true
    }

    pub fn reap(&mut self) {
        loop {
            let (pid, ended) = match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid.as_raw(), Ended::Code(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) => {
                    (pid.as_raw(), Ended::Signal(signal as i32))
                }
                Err(Errno::EINTR) => continue,
                _ => return,
            };
            if let Some(held) = self.held.get(&pid) {
                if held.run.kill_group_after {
                    // OpenPBS, also after success (recorded).
                    sigkill_group(pid);
                }
                self.ended.insert(pid, ended);
            }
        }
    }

    /// Whether any process but the mom still holds what it passed to `pid`, the terminal included.
    pub fn is_held(&mut self, pid: i32) -> Result<bool> {
        let held = self.held.get_mut(&pid).context("no such process")?;
        held.writers.clear();
        let mut open = false;
        for reader in &held.readers {
            open |= !hung_up(reader)?;
        }
        if let Some(terminal) = self.terminal.take() {
            drop(terminal.slave);
            open |= !hung_up(&terminal.master)?;
        }
        Ok(open)
    }

    fn terminal(&mut self) -> Result<String> {
        if self.terminal.is_none() {
            self.terminal = Some(openpty(None, None).context("pty")?);
        }
        let terminal = self.terminal.as_ref().context("no pty")?;
        let name = ttyname(&terminal.slave).context("pty")?;
        Ok(name.display().to_string())
    }
}

fn sigkill(pid: i32) {
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

fn sigkill_group(group: i32) {
    let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
}

fn hung_up(reader: &OwnedFd) -> Result<bool> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let mut fds = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO)?;
    let events = fds[0].revents();
    Ok(events.is_some_and(|events| events.contains(PollFlags::POLLHUP)))
}

/// What pbs_mom demands before it runs a script (`stat`, so a link to a good file is good).
fn check(path: &str) -> std::result::Result<(), Ended> {
    let Ok(about) = fs::metadata(path) else {
        return Err(Ended::NoScript);
    };
    let mode = about.mode();
    let good = about.is_file() && about.uid() == 0 && mode & 0o500 == 0o500 && mode & 0o022 == 0;
    if good { Ok(()) } else { Err(Ended::BadScript) }
}

fn session(pid: i32) -> Vec<i32> {
    let of = |number: &i32| {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        fields.split(' ').nth(3) == Some(&pid.to_string())
    };
    processes().into_iter().filter(of).collect()
}

pub fn processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}
