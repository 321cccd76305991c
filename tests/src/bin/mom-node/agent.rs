//! The agent: what it does by the test's orders.

use crate::root::LAYER;
use crate::running::{Running, processes};
use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};
use tests::double::look::walk;
use tests::mom::wire::{Order, Snapshot};
use tests::orders;

const LONGEST: Duration = Duration::from_secs(120);

pub fn serve(cgroups: &str) -> Result<()> {
    let turn = |running: &mut Running| {
        running.reap();
        true
    };
    orders::obey(&mut Running::new(mom_cgroup(cgroups)), turn, obey)
}

fn obey(running: &mut Running, order: Order) -> Result<Value> {
    Ok(match order {
        Order::Start(run) => json!(running.start(*run)?),
        Order::Run(run) => json!(match running.start(*run)? {
            Ok(pid) => running.wait(pid, LONGEST),
            Err(ended) => ended,
        }),
        Order::Wait { pid, limit_ms } => json!(running.wait(pid, Duration::from_millis(limit_ms))),
        Order::Signal { pid, signal } => {
            let signal = Signal::try_from(signal)?;
            json!(kill(Pid::from_raw(pid), signal).with_context(|| format!("process {pid}"))?)
        }
        Order::KillMom => {
            let cgroup = running.cgroup().map(str::to_owned);
            json!(kill_cgroup(
                &cgroup.context("no cgroup for the mom")?,
                running
            )?)
        }
        Order::Held { pid } => json!(running.is_held(pid)?),
        Order::Read { path } => {
            let text = fs::read(&path).ok();
            json!(text.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
        }
        Order::Write { path, text, mode } => {
            let file = Path::new(&path);
            let parent = file.parent().unwrap_or(Path::new("/"));
            let written = fs::create_dir_all(parent)
                .and_then(|()| fs::write(file, text))
                .and_then(|()| fs::set_permissions(file, fs::Permissions::from_mode(mode)));
            json!(written.with_context(|| path.clone())?)
        }
        Order::Snapshot => {
            running.reap();
            json!(snapshot())
        }
    })
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
fn kill_cgroup(cgroup: &str, running: &mut Running) -> Result<()> {
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
    bail!("'{cgroup}' is not empty")
}

fn snapshot() -> Snapshot {
    let mut all = Snapshot::default();
    for top in [LAYER, "/run", "/tmp", "/dev/shm"] {
        walk(Path::new(top), &mut |path, about| {
            let line = format!("{} {:o}", path.display(), about.mode());
            all.files.push(line);
            !path.starts_with("/srv") && !path.starts_with("/var/srv")
        });
    }
    all.files.sort();
    for pid in processes().into_iter().filter(|pid| *pid != 1) {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        all.processes.push(format!("{pid} {}", line.trim()));
    }
    all
}
