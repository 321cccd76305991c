//! The supervisor of a throw-away Slurm (`tests::slurm`). When the pipe to the test closes, it ends
//! and removes all of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mpsd_sys::signals::{Signals, start_fresh};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::Value;
use tests::double::look::{descendants, process};
use tests::double::remove_cgroup;
use tests::node_bed::kill;
use tests::orders;
use tests::slurm::Request;

const TERM_WAIT: Duration = Duration::from_secs(6);
const KILL_WAIT: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Warden {
    daemons: Vec<u32>,
    ended: BTreeSet<u32>,
    clients: Vec<(u32, u64)>,
    directories: Vec<PathBuf>,
    cgroups: Vec<PathBuf>,
}

fn main() -> Result<()> {
    nix::sys::prctl::set_child_subreaper(true).context("cannot become a child subreaper")?;
    let signals = Signals::block(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP])?;
    let mut warden = Warden::default();
    let turn = |warden: &mut Warden| {
        warden.reap();
        matches!(signals.read(), Ok(None))
    };
    if let Err(error) = orders::obey(&mut warden, turn, Warden::obey) {
        eprintln!("slurm-warden: {error:#}");
    }
    let forced = warden.teardown();
    // The test process may be gone and not read this; that is no failure.
    let _ = orders::say(&forced);
    Ok(())
}

impl Warden {
    fn obey(&mut self, request: Request) -> Result<Value> {
        match request {
            Request::Start { argv, env, log } => {
                let pid = start(&argv, &env, &log)?;
                self.ended.remove(&pid);
                self.daemons.push(pid);
                return Ok(pid.into());
            }
            Request::Remove { path } => self.directories.push(path),
            Request::RemoveCgroup { path } => self.cgroups.push(path),
            Request::Client { pid, start } => {
                // Forgets those that are gone, so that the list stays short.
                self.clients.retain(is_the_same);
                self.clients.push((pid, start));
            }
        }
        Ok(Value::Null)
    }

    fn reap(&mut self) {
        while let Ok(status) = waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)) {
            match status {
                WaitStatus::StillAlive => return,
                WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, _, _) => {
                    self.ended.insert(pid.as_raw().cast_unsigned());
                }
                _ => {}
            }
        }
    }

    fn has_ended(&mut self, pid: u32) -> bool {
        self.reap();
        self.ended.contains(&pid)
    }

    fn wait_for(&mut self, pid: u32, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while !self.has_ended(pid) {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Ends a daemon. Returns whether it had to be killed.
    fn stop(&mut self, pid: u32, term_wait: Duration) -> Result<bool> {
        if self.has_ended(pid) {
            return Ok(false);
        }
        // Our own child, not yet reaped: the pid cannot be another process's.
        kill(pid, Signal::SIGTERM);
        if self.wait_for(pid, term_wait) {
            return Ok(false);
        }
        kill(pid, Signal::SIGKILL);
        if self.wait_for(pid, KILL_WAIT) {
            return Ok(true);
        }
        bail!("pid {pid} survives SIGKILL for {} s", KILL_WAIT.as_secs())
    }

    fn teardown(&mut self) -> Vec<String> {
        let mut forced = Vec::new();
        for (pid, _) in self.clients.iter().filter(|client| is_the_same(client)) {
            kill(*pid, Signal::SIGKILL);
        }
        // slurmd forwards nothing to its steps when it ends, and a slurmstepd retries a dead
        // controller for minutes. So it ends the daemons first, then what has become this process's
        // child.
        for pid in std::mem::take(&mut self.daemons).into_iter().rev() {
            match self.stop(pid, TERM_WAIT) {
                Ok(false) => {}
                Ok(true) => forced.push(format!("daemon {pid} needed SIGKILL")),
                Err(error) => forced.push(format!("{error:#}")),
            }
        }
        self.kill_descendants(&mut forced);
        for directory in std::mem::take(&mut self.directories).into_iter().rev() {
            if let Err(error) = remove(&directory) {
                let directory = directory.display();
                forced.push(format!("cannot remove '{directory}': {error:#}"));
            }
        }
        for cgroup in self.cgroups.iter().filter(|cgroup| cgroup.exists()) {
            if let Err(error) = remove_cgroup(cgroup) {
                let cgroup = cgroup.display();
                forced.push(format!("cannot remove cgroup '{cgroup}': {error}"));
            }
        }
        forced
    }

    fn kill_descendants(&mut self, forced: &mut Vec<String>) {
        let own = std::process::id();
        let deadline = Instant::now() + KILL_WAIT;
        let mut told = BTreeSet::new();
        loop {
            self.reap();
            let left = descendants(own).into_iter();
            let left: Vec<_> = left.filter(|process| !process.is_zombie()).collect();
            if left.is_empty() {
                return;
            }
            for process in &left {
                // It keeps the scope that slurmd has from systemd, and outlives slurmd.
                let argv: Vec<&str> = process.args.iter().map(String::as_str).collect();
                let keeps_scope = process.name == "slurmstepd" && argv.ends_with(&["infinity"]);
                if told.insert(process.pid) && !keeps_scope {
                    forced.push(format!("killed {process}"));
                }
                kill(process.pid, Signal::SIGKILL);
            }
            if Instant::now() > deadline {
                forced.push(format!("{} processes survive SIGKILL", left.len()));
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn is_the_same((pid, start): &(u32, u64)) -> bool {
    process(*pid).is_some_and(|process| process.start == *start)
}

fn start(argv: &[String], env: &BTreeMap<String, String>, log: &Path) -> Result<u32> {
    let program = argv.first().context("empty command")?;
    let output = OpenOptions::new().create(true).append(true).open(log);
    let output = output.with_context(|| format!("cannot open '{}'", log.display()))?;
    let mut command = Command::new(program);
    command.args(&argv[1..]).env_clear().envs(env);
    command
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null());
    command.stdout(output.try_clone()?).stderr(output);
    start_fresh(&mut command);
    let child = command.spawn();
    let child = child.with_context(|| format!("cannot start '{program}'"))?;
    Ok(child.id())
}

/// Unmounts what is mounted in `directory`, deepest first, and removes it.
fn remove(directory: &Path) -> Result<()> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let points = points.filter(|point| Path::new(point).starts_with(directory));
    let mut points: Vec<&str> = points.collect();
    points.sort_unstable();
    for point in points.into_iter().rev() {
        nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH)
            .with_context(|| format!("cannot unmount '{point}'"))?;
    }
    let deadline = Instant::now() + KILL_WAIT;
    loop {
        match std::fs::remove_dir_all(directory) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
