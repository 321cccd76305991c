//! Every way to ask × {one daemon for the node, one for each GPU}, on two nodes with two GPUs each.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use tests::slurm::{Options, Record};

use crate::mps::{LIMIT, clients, ended, nodes, records, required, run, simulated, start};
use crate::runner::{Cell, Context, Group};

/// Under the word that the package ships.
pub const OPTIONAL: Group = Group {
    name: "matrix_optional",
    options: Options::default,
    prepare: simulated,
    needs: || None,
    cells: CELLS,
};

/// Under the other word.
pub const REQUIRED: Group = Group {
    name: "matrix_required",
    options: required,
    prepare: simulated,
    needs: || None,
    cells: CELLS,
};

const CELLS: &[Cell] = &[
    ("srun_node", |cell| srun(cell, Mode::Node)),
    ("srun_per_gpu", |cell| srun(cell, Mode::PerGpu)),
    ("salloc_node", |cell| salloc(cell, Mode::Node)),
    ("salloc_per_gpu", |cell| salloc(cell, Mode::PerGpu)),
    ("sbatch_node", |cell| sbatch(cell, Mode::Node)),
    ("sbatch_per_gpu", |cell| sbatch(cell, Mode::PerGpu)),
    ("step_in_a_plain_allocation_node", |cell| {
        step_in_a_plain_allocation(cell, Mode::Node)
    }),
    ("step_in_a_plain_allocation_per_gpu", |cell| {
        step_in_a_plain_allocation(cell, Mode::PerGpu)
    }),
    ("array_of_ten_node", |cell| array_of_ten(cell, Mode::Node)),
    ("array_of_ten_per_gpu", |cell| array_of_ten(cell, Mode::PerGpu)),
    ("two_steps_at_once_node", |cell| {
        two_steps_at_once(cell, Mode::Node)
    }),
    ("two_steps_at_once_per_gpu", |cell| {
        two_steps_at_once(cell, Mode::PerGpu)
    }),
    ("hetjob_node", |cell| hetjob(cell, Mode::Node)),
    ("hetjob_per_gpu", |cell| hetjob(cell, Mode::PerGpu)),
];

/// GPUs of a node, all of which each of these jobs takes.
const GPUS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Node,
    PerGpu,
}

impl Mode {
    fn flag(self) -> &'static str {
        match self {
            Mode::Node => "--mps",
            Mode::PerGpu => "--mps=per-gpu",
        }
    }

    /// An allocation of two nodes with all their GPUs.
    fn allocation(self) -> [&'static str; 5] {
        [
            "salloc",
            self.flag(),
            "-N2",
            "--ntasks-per-node=2",
            "--gres=gpu:2",
        ]
    }

    /// Checks that `count` clients ran under MPS as the user, that those of one job on one node had as many daemons as the
    /// mode says, and that in per-gpu mode each saw one GPU, that of its daemon.
    fn check(self, cell: &Context, records: &[Record], count: usize) -> Result<()> {
        ensure!(records.len() == count, "{count} clients expected: {records:?}");
        let mut daemons: BTreeMap<(&str, Option<&str>), BTreeSet<Option<i32>>> = BTreeMap::new();
        let mut gpus: BTreeMap<Option<i32>, BTreeSet<BTreeSet<&String>>> = BTreeMap::new();
        for record in records {
            ensure!(
                record.under_mps && record.error.is_none(),
                "not under MPS: {record:?}"
            );
            ensure!(record.uid == Some(cell.user.uid), "as another user: {record:?}");
            daemons
                .entry((&record.node, record.job.as_deref()))
                .or_default()
                .insert(record.daemon_pid);
            let seen = record.uuids.iter().collect();
            gpus.entry(record.daemon_pid).or_default().insert(seen);
            let seen = if self == Mode::PerGpu { 1 } else { GPUS };
            ensure!(
                record.uuids.len() == seen,
                "{seen} GPUs visible expected: {record:?}"
            );
        }
        let expected = if self == Mode::PerGpu { GPUS } else { 1 };
        ensure!(
            daemons.values().all(|pids| pids.len() == expected),
            "{expected} daemons a node: {daemons:?}"
        );
        ensure!(
            gpus.values().all(|seen| seen.len() == 1),
            "clients of one daemon with different GPUs: {gpus:?}"
        );
        Ok(())
    }
}

fn client(cell: &Context) -> Result<String> {
    Ok(nodes(cell)?.client("--hold 0.3"))
}

fn srun(cell: &Context, mode: Mode) -> Result<()> {
    let arguments = [
        mode.flag(),
        "--mps-bind=auto",
        "-N2",
        "--ntasks-per-node=4",
        "--gres=gpu:2",
    ];
    let records = clients(cell, &arguments, "--hold 0.3")?;
    mode.check(cell, &records, 8)?;
    let on: BTreeSet<_> = records.iter().map(|record| &record.node).collect();
    ensure!(on.len() == 2, "both nodes: {records:?}");
    // More tasks than GPUs: those who take the first GPU that they see share them all.
    let mut first: BTreeMap<&String, usize> = BTreeMap::new();
    for record in &records {
        *first.entry(&record.uuids[0]).or_default() += 1;
    }
    ensure!(
        first.into_values().eq([2; 4]),
        "two clients on each of four GPUs: {records:?}"
    );
    Ok(())
}

fn salloc(cell: &Context, mode: Mode) -> Result<()> {
    let line = client(cell)?;
    let shell = format!("srun /bin/sh -c '{line}' && srun /bin/sh -c '{line}'");
    // Both steps have the same daemons: else there would be twice as many.
    mode.check(cell, &run(cell, &mode.allocation(), &shell)?, 8)
}

fn sbatch(cell: &Context, mode: Mode) -> Result<()> {
    let line = client(cell)?;
    let script = format!(
        "#SBATCH {}\nsrun /bin/sh -c '{line}'\nsrun /bin/sh -c '{line}'",
        mode.flag()
    );
    let job = cell.bed.sbatch(
        &cell.user,
        &["-N2", "--ntasks-per-node=2", "--gres=gpu:2"],
        &script,
    )?;
    cell.bed.wait_job(job, &["COMPLETED"], LIMIT)?;
    let records = records(&cell.bed.output(&cell.user, job), "")?;
    ensure!(
        records
            .iter()
            .all(|record| record.job.as_deref() == Some(&job.to_string())),
        "{records:?}"
    );
    mode.check(cell, &records, 8)
}

/// The job has no MPS: the step gets its own, and the compute mode stays as it is.
fn step_in_a_plain_allocation(cell: &Context, mode: Mode) -> Result<()> {
    let line = client(cell)?;
    let plain = nodes(cell)?.client("--hold 0.1");
    let shell = format!(
        "srun {} /bin/sh -c '{line}' && srun /bin/sh -c '{plain}'",
        mode.flag()
    );
    let allocation = ["salloc", "-N2", "--ntasks-per-node=2", "--gres=gpu:2"];
    let mut job = start(cell, &cell.user, &allocation, &shell)?;
    while job.runs()? {
        for node in &nodes(cell)?.nodes {
            ensure!(
                node.modes().iter().all(|mode| mode == "default"),
                "a step changed a compute mode"
            );
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let (with, without): (Vec<_>, Vec<_>) = ended(job)?.into_iter().partition(|record| record.under_mps);
    ensure!(
        without.len() == 4,
        "the second step asked for nothing: {with:?} {without:?}"
    );
    mode.check(cell, &with, 4)
}

fn array_of_ten(cell: &Context, mode: Mode) -> Result<()> {
    let line = client(cell)?;
    let arguments = [
        "--array=1-10",
        "--ntasks-per-node=2",
        "--gres=gpu:2",
        mode.flag(),
        "--output=array-%A.out",
        "--open-mode=append",
    ];
    let job = cell
        .bed
        .sbatch(&cell.user, &arguments, &format!("srun /bin/sh -c '{line}'"))?;
    cell.bed.wait_idle(LIMIT)?;
    let said = std::fs::read_to_string(cell.bed.home(&cell.user).join(format!("array-{job}.out")))?;
    let records = records(&said, "")?;
    mode.check(cell, &records, 20)?;
    let jobs: BTreeSet<_> = records
        .iter()
        .filter_map(|record| record.job.as_deref())
        .collect();
    ensure!(jobs.len() == 10, "each element is a job of its own: {jobs:?}");
    Ok(())
}

/// Two steps of one job at the same time, each with one GPU of each node.
fn two_steps_at_once(cell: &Context, mode: Mode) -> Result<()> {
    let line = client(cell)?;
    let step = format!("srun --exact -N2 -n2 --gres=gpu:1 /bin/sh -c '{line}'");
    let shell = format!("{step} & first=$!; {step} & wait $! && wait $first");
    let records = run(cell, &mode.allocation(), &shell)?;
    ensure!(records.len() == 4, "two steps on two nodes: {records:?}");
    let mut daemons: BTreeMap<&str, BTreeSet<Option<i32>>> = BTreeMap::new();
    let mut gpus: BTreeSet<&str> = BTreeSet::new();
    for record in &records {
        ensure!(
            record.under_mps && record.uuids.len() == 1,
            "under MPS with the step's GPU: {record:?}"
        );
        daemons.entry(&record.node).or_default().insert(record.daemon_pid);
        gpus.insert(&record.uuids[0]);
    }
    let expected = if mode == Mode::PerGpu { GPUS } else { 1 };
    ensure!(
        daemons.values().all(|pids| pids.len() == expected),
        "{expected} daemons a node: {daemons:?}"
    );
    ensure!(gpus.len() == 4, "each client on a GPU of its own: {records:?}");
    Ok(())
}

fn hetjob(cell: &Context, mode: Mode) -> Result<()> {
    let part = [mode.flag(), "-N1", "-n2", "--gres=gpu:2"];
    let records = clients(cell, &[&part[..], &[":"], &part].concat(), "--hold 0.3")?;
    mode.check(cell, &records, 4)?;
    let jobs: BTreeSet<_> = records.iter().map(|record| (&record.node, &record.job)).collect();
    ensure!(
        jobs.len() == 2,
        "each component has its own job id and node: {records:?}"
    );
    Ok(())
}
