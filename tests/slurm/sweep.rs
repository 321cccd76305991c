//! `mpsctl sweep` and `mpsctl pack` in a step of a real Slurm.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tests::slurm::Record;

use crate::jobs::{gpus, holds, says};
use crate::runner::{Context, Group, KEEP, cells};

/// This site keeps the compute mode, so that a sweep can compare.
pub const GROUP: Group = Group::fast(
    "sweep",
    KEEP,
    cells![
        a_sweep_runs_clients_on_the_steps_gpus,
        a_pack_on_two_nodes_runs_each_command_once
    ],
);

const LIMIT: Duration = Duration::from_secs(90);

/// Two clients on each GPU: auto limits nothing then, and is not measured again.
fn a_sweep_runs_clients_on_the_steps_gpus(cell: &Context) -> Result<()> {
    let file = cell.bed.home(&cell.user).join("sweep.records");
    let client = cell.client(&format!("--hold 0.5 --record {}", file.display()));
    let script = format!("{} && echo 2 x", client.replacen("exec ", "", 1));
    let sweep = format!("{} sweep --json --clients 4 --metric x", cell.mpsctl());
    let line = format!("exec {sweep} -- /bin/sh -c '{script}'");
    let step = cell.start("srun --mps -N1 -n1 --gres=gpu:2", &line)?;
    let done = step.wait(LIMIT)?.success()?;
    let told: Value = serde_json::from_str(&done.stdout).with_context(|| done.stdout.clone())?;
    let rows = told["rows"].as_array().context("rows")?;
    let right = told["gpus"] == 2 && rows.iter().all(|row| row["throughput"] == 8.0);
    ensure!(right, "four clients, two each: {told}");
    let without = rows.iter().filter(|row| row["mps"] == false).count();
    ensure!(without == 1, "without MPS too: {told}");
    let records = Record::all(&std::fs::read_to_string(&file)?)?;
    std::fs::remove_file(&file)?;
    let (under, bare): (Vec<_>, Vec<_>) = records.into_iter().partition(|record| record.under_mps);
    for of_run in [under, bare] {
        let on_first = |record: &&Record| record.uuids == of_run[0].uuids;
        let counts = [of_run.len(), of_run.iter().filter(on_first).count()];
        holds(counts == [4, 2] && gpus(&of_run).len() == 2, &of_run)?;
    }
    Ok(())
}

/// Each node takes its part by its number in the step. In the batch script, whose environment names
/// two nodes, pack runs all.
fn a_pack_on_two_nodes_runs_each_command_once(cell: &Context) -> Result<()> {
    let home = cell.bed.home(&cell.user);
    let records = home.join("pack.records");
    let client = cell.client(&format!("--hold 0.2 --record {}", records.display()));
    let (file, mpsctl) = (home.join("pack.txt").display().to_string(), cell.mpsctl());
    let write = format!("yes '{client}' | head -n 9 >{file}");
    let pack = format!("{mpsctl} pack -n 4 {file}");
    let tidy = format!("rm -r {file} {file}.results");
    let script = format!(
        "#SBATCH --mps\n{write}\nsrun -N2 --ntasks-per-node=1 {pack}\ncat {file}.results/joblog.0 {file}.results/joblog.1\n\
         {pack} || exit 9\nsrun -O -N2 -n4 {pack} && exit 8\n{tidy}"
    );
    let (_, said) = cell.batch("-N2 --gres=gpu:2", &script)?;
    let seqs = said
        .lines()
        .filter_map(|line| line.split_once('\t')?.0.parse().ok());
    let mut seqs: Vec<u32> = seqs.collect();
    seqs.sort_unstable();
    ensure!(seqs == (1..=9).collect::<Vec<_>>(), "each once: {said}");
    for words in [
        "5 commands: 5 succeeded",
        "4 commands: 4 succeeded",
        "9 commands: 9 succeeded",
    ] {
        ensure!(said.matches(words).count() == 1, "'{words}': {said}");
    }
    let words = [
        "the job has other nodes too",
        "this step has 4 tasks on 2 nodes",
    ];
    says(&said, &words)?;
    let all = Record::all(&std::fs::read_to_string(&records)?)?;
    std::fs::remove_file(&records)?;
    let right = |record: &Record| record.under_mps && record.uuids.len() == 1;
    let counts = (all.len(), gpus(&all).len());
    holds(all.iter().all(right) && counts == (18, 4), &all)
}
