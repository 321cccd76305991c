//! Differently configured sites: automatic requests, shared GPUs, private /tmp, no PrologFlags.

use std::path::Path;

use anyhow::{Result, ensure};
use tests::slurm::{Options, Simulated, stamp};

use crate::jobs::{check_daemons, holds};
use crate::runner::{Context, Group, cells};

/// The site gives jobs a daemon, and the prolog waits for it.
pub const AUTOMATIC: Group = Group {
    options: || Options {
        gres_types: vec!["mps".into()],
        gres_count: 200,
        node_words: Some("Feature=mps,big".into()),
        partition_lines: vec!["PartitionName=shared Nodes=ALL State=UP".into()],
        ..Options::default()
    },
    prepare: |bed| {
        let automatic =
            "auto_gres = true\nauto_constraint = \"mps\"\nauto_partitions = [\"shared\"]\n";
        let config = format!("[slurm]\nwait = \"prolog\"\n{automatic}");
        Simulated::install(bed, &config, |node| node)
    },
    ..Group::new("automatic", cells![jobs_have_mps_where_the_site_says_so])
};

/// Slurm's default: the prolog runs at a node's first step, and has that step's options in its
/// environment.
pub const NO_FLAGS: Group = Group {
    options: || Options {
        prolog_flags: String::new(),
        ..Options::default()
    },
    ..Group::new(
        "no_flags",
        cells![a_first_step_that_asks_does_not_ask_for_its_job],
    )
};

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

fn jobs_have_mps_where_the_site_says_so(cell: &Context) -> Result<()> {
    for (words, under_mps) in [
        ("-n3 --constraint=mps&big --gres=gpu:2", true),
        ("-n3 --constraint=big --gres=gpu:2", false),
        ("-n3 --partition=shared --gres=gpu:2", true),
        // The job can open the node's other GPU, whose number would be another one behind a daemon.
        ("-n2 --constraint=mps --gres=gpu:1", false),
        ("-n1 --gres=mps:50", false),
    ] {
        let records = cell.clients(words, "--hold 0.1")?;
        let right =
            |record: &tests::slurm::Record| record.error.is_none() && record.under_mps == under_mps;
        ensure!(
            !records.is_empty() && records.iter().all(right),
            "{words}: {records:?}"
        );
    }
    Ok(())
}

/// The next step is like its job, and another step may ask differently.
fn a_first_step_that_asks_does_not_ask_for_its_job(cell: &Context) -> Result<()> {
    let client = cell.client("--hold 0.1");
    let steps = [
        "--mps --mps-threads=30",
        "",
        "--mps --mps-threads=20",
        "--mps=off",
    ];
    let steps = steps.map(|words| format!("srun {words} /bin/sh -c '{client}'"));
    let records = cell.records("salloc -N2 --gres=gpu:1", &steps.join(" && "))?;
    let under: Vec<bool> = records.iter().map(|record| record.under_mps).collect();
    let asked = [true, true, false, false, true, true, false, false];
    ensure!(under == asked, "under MPS: {under:?}, not {asked:?}");
    holds(records[0].sms > records[4].sms, &records)
}

/// The job's mount namespace is older than the step's daemon.
fn a_step_finds_its_own_daemon(cell: &Context) -> Result<()> {
    let line = cell.client("--hold 0.2");
    let steps = format!("srun /bin/true && srun --mps /bin/sh -c '{line}'");
    let records = cell.records("salloc -w node1 --gres=gpu:1", &steps)?;
    check_daemons(&records, cell.user.uid, 1)
}
