//! The agent: one order a line on standard input, one answer a line on standard output.

use crate::root::LAYER;
use crate::running::{Running, processes};
use anyhow::Result;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};
use tests::mom::wire::{Answer, Order, Snapshot};

/// Longest wait for a process without a time limit of its own.
const LONGEST: Duration = Duration::from_secs(120);
const IDLE_MS: u16 = 10;

pub fn serve(cgroups: &str) -> Result<()> {
    let running = &mut Running::new(mom_cgroup(cgroups));
    let mut input = std::io::stdin().lock();
    let mut text: Vec<u8> = Vec::new();
    let mut block = [0_u8; 65536];
    loop {
        let mut fds = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, PollTimeout::from(IDLE_MS)).unwrap_or(0) > 0;
        running.reap();
        if !ready {
            continue;
        }
        let count = input.read(&mut block)?;
        if count == 0 {
            return Ok(());
        }
        text.extend_from_slice(&block[..count]);
        while let Some(end) = text.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let order: Order = serde_json::from_slice(&line)?;
            let answer = obey(running, order).unwrap_or_else(Answer::Failed);
            let mut output = std::io::stdout().lock();
            writeln!(output, "{}", serde_json::to_string(&answer)?)?;
            output.flush()?;
        }
    }
}

fn obey(running: &mut Running, order: Order) -> Result<Answer, String> {
    match order {
        Order::Run(run) => {
            let background = run.background;
            match running.start(*run) {
                Ok(pid) if background => Ok(Answer::Started(pid)),
                Ok(pid) => Ok(Answer::Ended(running.wait(pid, LONGEST))),
                Err(Ok(ended)) => Ok(Answer::Ended(ended)),
                Err(Err(why)) => Err(why),
            }
        }
        Order::Wait { pid, limit_ms } => Ok(Answer::Ended(
            running.wait(pid, Duration::from_millis(limit_ms)),
        )),
        Order::Signal { pid, signal } => {
            let signal = Signal::try_from(signal).map_err(|e| e.to_string())?;
            kill(Pid::from_raw(pid), signal).map_err(|e| format!("process {pid}: {e}"))?;
            Ok(Answer::Done)
        }
        Order::KillMom => {
            let cgroup = running.cgroup().ok_or("no cgroup for the mom")?.to_owned();
            kill_cgroup(&cgroup, running).map(|()| Answer::Done)
        }
        Order::Held { pid } => running.is_held(pid).map(Answer::Bool),
        Order::Read { path } => {
            let text = fs::read(&path).ok();
            Ok(Answer::Text(
                text.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
            ))
        }
        Order::Write { path, text, mode } => {
            let file = Path::new(&path);
            let parent = file.parent().unwrap_or(Path::new("/"));
            fs::create_dir_all(parent)
                .and_then(|()| fs::write(file, text))
                .and_then(|()| fs::set_permissions(file, fs::Permissions::from_mode(mode)))
                .map_err(|e| format!("'{path}': {e}"))?;
            Ok(Answer::Done)
        }
        Order::Snapshot => {
            running.reap();
            Ok(Answer::Snapshot(snapshot()))
        }
    }
}

/// The mom's unit in systemd's cgroups: in the unified hierarchy if there is one, else in its named
/// one.
fn mom_cgroup(cgroups: &str) -> Option<String> {
    let top = cgroups.split(',').find(|top| !top.is_empty())?;
    let path = format!("{top}/pbs_mom.service");
    fs::create_dir(&path).ok().map(|()| path)
}

/// Sends SIGKILL to all of it until it is empty. Processes that end meanwhile are reaped as usual,
/// so that no status is lost.
fn kill_cgroup(cgroup: &str, running: &mut Running) -> Result<(), String> {
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end {
        let text = fs::read_to_string(format!("{cgroup}/cgroup.procs")).unwrap_or_default();
        let members = text.lines().filter_map(|line| line.parse().ok());
        let members: Vec<i32> = members.filter(|pid| *pid > 0).collect();
        if members.is_empty() {
            return Ok(());
        }
        for pid in members {
            // It may have ended in between.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(5));
        running.reap();
    }
    Err(format!("'{cgroup}' is not empty"))
}

fn snapshot() -> Snapshot {
    let mut all = Snapshot::default();
    for top in [LAYER, "/run", "/tmp", "/dev/shm"] {
        walk(Path::new(top), &mut all.files);
    }
    all.files.sort();
    for pid in processes().into_iter().filter(|pid| *pid != 1) {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        all.processes.push(format!("{pid} {}", line.trim()));
    }
    all
}

fn walk(dir: &Path, files: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let (path, Ok(about)) = (entry.path(), entry.path().symlink_metadata()) else {
            continue;
        };
        files.push(format!("{} {:o}", path.display(), about.mode()));
        if about.is_dir() && !path.starts_with("/srv") && !path.starts_with("/var/srv") {
            walk(&path, files);
        }
    }
}
