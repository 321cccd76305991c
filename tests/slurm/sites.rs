//! A site with a private /tmp, and what a machine lacks for a group.

use std::path::Path;

use anyhow::Result;
use tests::slurm::{Options, stamp};

use crate::jobs::check_daemons;
use crate::runner::{Context, Group, cells};

/// `job_container/tmpfs` gives each job its own /tmp and /dev/shm.
pub const CONTAINER: Group = Group {
    options: || Options {
        slurm_lines: vec!["JobContainerType=job_container/tmpfs".into()],
        ..Options::default()
    },
    prepare: |bed, _| {
        let base = format!("BasePath={}/containers", bed.dir().display());
        bed.options_mut().job_container_lines = vec!["AutoBasePath=true".into(), base];
        Ok(())
    },
    ..Group::new("job_container", cells![a_step_finds_its_own_daemon])
};

/// Why the Slurm that runs lacks what came with this release.
pub fn older_than(major: u8, minor: u8, what: &str) -> Option<String> {
    let [_, ours, its, _] = stamp::installed().ok()?.to_be_bytes();
    ((ours, its) < (major, minor)).then(|| format!("{what} is of Slurm {major}.{minor:02}"))
}

/// Why this machine cannot run what needs these controllers. Version 2 has devices and a freezer
/// without naming them.
pub fn no_cgroups(names: &[&str]) -> Option<String> {
    let listed = std::fs::read_to_string("/sys/fs/cgroup/cgroup.controllers");
    let is_there = |name: &str| match &listed {
        Ok(listed) => {
            let mut there = listed.split_whitespace().chain(["devices", "freezer"]);
            there.any(|there| there == name)
        }
        Err(_) => Path::new("/sys/fs/cgroup").join(name).is_dir(),
    };
    let mut missing = names.to_vec();
    missing.retain(|name| !is_there(name));
    let (version, list) = (
        if listed.is_ok() { "v2" } else { "v1" },
        missing.join("' and '"),
    );
    let why = format!("this machine has no cgroup {version} controller '{list}'");
    (!missing.is_empty()).then_some(why)
}

/// The job's mount namespace is older than the step's daemon.
fn a_step_finds_its_own_daemon(cell: &Context) -> Result<()> {
    let line = cell.client("--hold 0.2");
    let steps = format!("srun /bin/true && srun --mps /bin/sh -c '{line}'");
    let records = cell.records("salloc -w node1 --gres=gpu:1", &steps)?;
    check_daemons(&records, cell.user.uid, 1)
}
