//! `mpsctl sweep` and `mpsctl pack` in a step of a real Slurm.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tests::slurm::Record;

use crate::jobs::{gpus, holds};
use crate::runner::{Context, Group, cells, fast};

/// This site keeps the compute mode, so that a sweep can compare.
pub const GROUP: Group = Group {
    prepare: |bed| fast(bed, "compute_mode = \"keep\"\n"),
    ..Group::new(
        "sweep",
        cells![
            a_sweep_runs_clients_on_the_steps_gpus,
            a_pack_on_two_nodes_runs_each_command_once
        ],
    )
};

const LIMIT: Duration = Duration::from_secs(90);

fn line(cell: &Context, words: &str, script: &str) -> String {
    format!(
        "exec {} sweep {words} -- /bin/sh -c '{script}'",
        cell.mpsctl()
    )
}

/// Two clients on each GPU: auto limits nothing then, and is not measured again.
fn a_sweep_runs_clients_on_the_steps_gpus(cell: &Context) -> Result<()> {
    let file = cell.bed.home(&cell.user).join("sweep.records");
    let client = cell.client(&format!("--hold 0.5 --record {}", file.display()));
    let script = format!("{} && echo 2 x", client.replacen("exec ", "", 1));
    let line = line(cell, "--json --clients 4 --metric x", &script);
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
        let first = of_run
            .iter()
            .filter(|record| record.uuids == of_run[0].uuids)
            .count();
        holds(
            of_run.len() == 4 && first == 2 && gpus(&of_run).len() == 2,
            &of_run,
        )?;
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
    for (words, times) in [
        ("5 commands: 5 succeeded", 1),
        ("4 commands: 4 succeeded", 1),
        ("9 commands: 9 succeeded", 1),
    ] {
        ensure!(said.matches(words).count() == times, "'{words}': {said}");
    }
    ensure!(said.contains("the job has other nodes too"), "{said}");
    ensure!(said.contains("this step has 4 tasks on 2 nodes"), "{said}");
    let all = Record::all(&std::fs::read_to_string(&records)?)?;
    std::fs::remove_file(&records)?;
    holds(
        all.len() == 18
            && all
                .iter()
                .all(|record| record.under_mps && record.uuids.len() == 1)
            && gpus(&all).len() == 4,
        &all,
    )
}
