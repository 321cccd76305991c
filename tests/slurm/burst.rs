//! Two hundred jobs at once on four nodes leave nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use tests::slurm::{Options, Record, Simulated};

use crate::mps::nodes;
use crate::runner::{Context, Group};

/// Four nodes with two GPUs each.
pub const GROUP: Group = Group {
    name: "burst",
    options: || Options {
        nodes: 4,
        ..Options::default()
    },
    // Busy as the host is, a daemon may take longer than on a node of its own.
    prepare: |bed| Simulated::install(bed, "deadline_s = 60\n", |node| node.fast()).map(Some),
    needs: || None,
    cells: &[("two_hundred_jobs", two_hundred_jobs)],
};

const JOBS: usize = 200;

/// Longest that all of them may take on two slow cores.
const LIMIT: Duration = Duration::from_secs(400);

fn two_hundred_jobs(cell: &Context) -> Result<()> {
    let line = nodes(cell)?.client("");
    let arguments = [
        "--mps",
        "--mps-threads=50",
        "--gres=gpu:1",
        "--output=burst.out",
        "--open-mode=append",
    ];
    for _ in 0..JOBS {
        cell.bed.sbatch(&cell.user, &arguments, &line)?;
    }
    let ended = cell.bed.wait_idle(LIMIT);
    let said = std::fs::read_to_string(cell.bed.home(&cell.user).join("burst.out"))?;
    let others: Vec<&str> = said.lines().filter(|line| !line.starts_with('{')).collect();
    ensure!(others.is_empty(), "complaints: {others:?}");
    ended?;
    let records = Record::all(&said)?;
    let jobs: BTreeSet<_> = records.iter().filter_map(|record| record.job.clone()).collect();
    let on: BTreeSet<_> = records.iter().map(|record| &record.node).collect();
    ensure!(
        jobs.len() == JOBS && records.len() == JOBS,
        "{} jobs wrote {} records",
        jobs.len(),
        records.len()
    );
    ensure!(on.len() == 4, "all nodes took part: {on:?}");
    let right = |record: &&Record| record.under_mps && record.error.is_none() && record.sms == Some(66);
    let wrong: Vec<_> = records.iter().filter(|record| !right(record)).collect();
    ensure!(wrong.is_empty(), "without their MPS or limits: {wrong:?}");
    Ok(())
}
