//! Jobs side by side, inside each other, run again, cut off.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use tests::node_bed::send;
use tests::slurm::Options;

use crate::jobs::{LIMIT, check_daemons, gpus, holds, records};
use crate::runner::{Context, Group, cells};

pub const GROUP: Group = Group {
    options: || Options {
        login_shells: true,
        cpus: 16,
        ..Options::default()
    },
    ..Group::new(
        "shapes",
        cells![
            a_batch_job_without_environment_has_its_mps,
            steps_at_once_share_their_jobs_daemons,
            a_killed_slurmstepd_leaves_nothing,
            the_scripts_of_the_pages_give_each_task_its_share,
        ],
    )
};

fn scripts(page: &'static str) -> impl Iterator<Item = &'static str> {
    let blocks = page.split("```bash\n").skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap_or_default())
}

/// Those of the recipes and of the quick start, with a client for the program.
/// (50 % of 132 multiprocessors are 66, 25 % are 32: recorded.)
fn the_scripts_of_the_pages_give_each_task_its_share(cell: &Context) -> Result<()> {
    let solver = cell.bed.home(&cell.user).join("solver");
    let client = cell.client("--hold 0.5");
    std::fs::write(&solver, format!("#!/bin/sh\n{client}\n"))?;
    std::fs::set_permissions(&solver, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let recipes = scripts(include_str!("../../docs/recipes.md"));
    let recipes = recipes.map(|script| script.replace("gmx_mpi", "./solver gmx_mpi"));
    let page = include_str!("../../docs/quick-start.md");
    let page = page.split_once("\n## Batch scripts\n");
    let (_, page) = page.context("no heading")?;
    let batch = page.split("\n## ").next().unwrap_or_default();
    let own = scripts(batch).map(str::to_owned);
    let all: Vec<String> = recipes.chain(own).collect();
    let shares = [(4, 1, 66), (8, 2, 66), (8, 1, 32)];
    ensure!(all.len() == shares.len(), "{all:?}");
    for (script, (tasks, nodes, sms)) in all.iter().zip(shares) {
        let (_, output) = cell.batch("--time=5", script)?;
        let records = records(&output)?;
        check_daemons(&records, cell.user.uid, 1)?;
        let on: BTreeSet<_> = records.iter().map(|record| &record.node).collect();
        let right = records.iter().all(|record| record.sms == Some(sms));
        let counts = (records.len(), on.len());
        holds(right && counts == (tasks, nodes), &records)?;
        cell.idle()?;
    }
    Ok(())
}

/// With `--export=NONE` the batch step does not get the option.
fn a_batch_job_without_environment_has_its_mps(cell: &Context) -> Result<()> {
    let line = cell.client("--hold 0.1");
    // That option also removes the variable with this cluster's place.
    let dir = cell.bed.dir().display();
    let conf = format!("export SLURM_CONF={dir}/etc/slurm.conf");
    let script = format!("{conf}\n({line})\nsrun /bin/sh -c '{line}'");
    let (_, said) = cell.batch("--mps --export=NONE --gres=gpu:1", &script)?;
    let records = records(&said)?;
    ensure!(records.len() == 2, "script and step: {records:?}");
    check_daemons(&records, cell.user.uid, 1)
}

/// Overlapping steps have both GPUs of a node; the others have one of each node.
fn steps_at_once_share_their_jobs_daemons(cell: &Context) -> Result<()> {
    let client = cell.client("--hold 0.4");
    let (both, exact) = ("--overlap -n2 --gres=gpu:2", "--exact -N2 -n2 --gres=gpu:1");
    for (job, step, own, all, daemons) in [
        ("--mps -N1 -n2", both, 2, 2, 1),
        ("--mps -N2 --ntasks-per-node=2", exact, 1, 4, 1),
        ("--mps=per-gpu -N2 --ntasks-per-node=2", exact, 1, 4, 2),
    ] {
        let step = format!("srun {step} /bin/sh -c '{client}'");
        let both = format!("{step} & first=$!; {step} & wait $! && wait $first");
        let records = cell.records(&format!("salloc {job} --gres=gpu:2"), &both)?;
        let right = records.len() == 4 && records.iter().all(|record| record.uuids.len() == own);
        holds(right && gpus(&records).len() == all, &records)?;
        check_daemons(&records, cell.user.uid, daemons)?;
    }
    Ok(())
}

/// Nothing calls the step's exit callback, so the job's epilog ends the step's own daemon.
fn a_killed_slurmstepd_leaves_nothing(cell: &Context) -> Result<()> {
    let line = cell.client("--hold 3");
    let job = cell.start("salloc -N1 --gres=gpu:1 srun --mps", &line)?;
    let nodes = &cell.nodes.nodes;
    let clients = || {
        let contexts = nodes.iter().flat_map(|node| node.contexts());
        let of_mps = contexts.filter(|(_, context)| context.kind == "mps");
        of_mps.count()
    };
    cell.wait("the step's client", || Ok(clients() == 1))?;
    let mut stepds = cell.bed.job_processes();
    stepds.retain(|process| {
        let name = process.args.first();
        name.is_some_and(|name| name.starts_with("slurmstepd: [") && !name.contains("extern"))
    });
    let [stepd] = &stepds[..] else {
        bail!("one slurmstepd expected: {stepds:?}")
    };
    send(stepd.pid, Signal::SIGKILL)?;
    // Slurm does not notice that slurmstepd is gone, so the test cancels the job. `scancel --user`
    // gets the uid, because Slurm 26.05 does not know the name 'nobody'.
    cell.root(&format!("scancel --user {}", cell.user.uid))?;
    job.wait(LIMIT)?;
    cell.wait("the daemon's end", || {
        Ok(nodes.iter().all(|node| node.daemons().is_empty()))
    })
}
