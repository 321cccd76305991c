//! A site with a private /tmp, and what a machine lacks for a group.

use std::path::Path;

use anyhow::Result;
use tests::slurm::{Options, Simulated, stamp};

use crate::jobs::check_daemons;
use crate::runner::{Context, Group, cells};

/// `job_container/tmpfs` gives each job its own /tmp and /dev/shm.
pub const CONTAINER: Group = Group {
    options: || Options {
        slurm_lines: vec!["JobContainerType=job_container/tmpfs".into()],
        ..Options::default()
    },
    prepare: |bed| {
        let base = format!("BasePath={}/containers", bed.dir().display());
        bed.options_mut().job_container_lines = vec!["AutoBasePath=true".into(), base];
        Simulated::install(bed, "", |node| node)
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
    let (version, there): (_, Vec<&str>) = match &listed {
        Ok(listed) => (
            "v2",
            listed
                .split_whitespace()
                .chain(["devices", "freezer"])
                .collect(),
        ),
        Err(_) => {
            let is_there = |name: &&str| Path::new("/sys/fs/cgroup").join(name).is_dir();
            ("v1", names.iter().copied().filter(is_there).collect())
        }
    };
    let missing: Vec<&str> = names
        .iter()
        .filter(|name| !there.contains(name))
        .copied()
        .collect();
    let list = missing.join("' and '");
    (!missing.is_empty())
        .then(|| format!("this machine has no cgroup {version} controller '{list}'"))
}

/// The job's mount namespace is older than the step's daemon.
fn a_step_finds_its_own_daemon(cell: &Context) -> Result<()> {
    let line = cell.client("--hold 0.2");
    let steps = format!("srun /bin/true && srun --mps /bin/sh -c '{line}'");
    let records = cell.records("salloc -w node1 --gres=gpu:1", &steps)?;
    check_daemons(&records, cell.user.uid, 1)
}
