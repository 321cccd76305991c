//! `mpsctl sweep` in a step of a real Slurm.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use tests::slurm::{Options, Process, Record, Simulated};

use crate::mps::nodes;
use crate::runner::{Context, Group};

/// Jobs of a site that keeps the compute mode, so that a sweep can compare.
pub const GROUP: Group = Group {
    name: "sweep",
    options: Options::default,
    prepare: |bed| Simulated::install(bed, "compute_mode = \"keep\"\n", |node| node.fast()).map(Some),
    needs: || None,
    cells: &[
        ("clients_on_the_steps_gpus", clients_on_the_steps_gpus),
        ("a_cancelled_sweep_is_gone", a_cancelled_sweep_is_gone),
    ],
};

const LIMIT: Duration = Duration::from_secs(90);

/// The step's command: a sweep of `script`.
fn line(cell: &Context, words: &str, script: &str) -> Result<String> {
    let product = &nodes(cell)?.product;
    let (program, config) = (product.libexec.join("mpsctl"), &product.config);
    Ok(format!(
        "exec {} --config {} sweep {words} -- /bin/sh -c '{script}'",
        program.display(),
        config.display()
    ))
}

fn clients_on_the_steps_gpus(cell: &Context) -> Result<()> {
    let file = cell.bed.home(&cell.user).join("sweep.records");
    let hold = format!("--hold 0.5 --record {}", file.display());
    let client = nodes(cell)?.client(&hold).replacen("exec ", "", 1);
    let line = line(
        cell,
        "--json --clients 4 --metric x",
        &format!("{client} && echo 2 x"),
    )?;
    let step = ["srun", "--mps", "-N1", "-n1", "--gres=gpu:2"];
    let done = crate::mps::start(cell, &cell.user, &step, &line)?
        .wait(LIMIT)?
        .success()?;
    let told: Value = serde_json::from_str(&done.stdout).with_context(|| done.stdout.clone())?;
    let rows = told["rows"].as_array().context("rows")?;
    ensure!(
        told["gpus"] == 2 && rows.iter().all(|row| row["throughput"] == 8.0),
        "four clients, two each: {told}"
    );
    ensure!(
        rows.iter().filter(|row| row["mps"] == false).count() == 1,
        "without MPS too: {told}"
    );
    // Two on each GPU: their auto is no limit, and is not measured again.
    let records = Record::all(&std::fs::read_to_string(&file)?)?;
    let (under, bare): (Vec<_>, Vec<_>) = records.iter().partition(|record| record.under_mps);
    ensure!(under.len() == 4 && bare.len() == 4, "{records:?}");
    for of_run in [under, bare] {
        let first = of_run.first().context("a record")?.uuids.clone();
        let beside = of_run.iter().filter(|record| record.uuids == first).count();
        ensure!(
            first.len() == 1 && beside == 2,
            "one GPU each, two on each: {of_run:?}"
        );
    }
    std::fs::remove_file(&file)?;
    Ok(())
}

fn a_cancelled_sweep_is_gone(cell: &Context) -> Result<()> {
    // A copy that ignores SIGTERM, and one that has left its session.
    let script = "trap \"\" TERM; setsid sleep 600 & sleep 600";
    let line = line(cell, "--clients 2 --only-mps", script)?;
    let step = ["srun", "--mps", "-N1", "-n1", "--gres=gpu:1"];
    let job = crate::mps::start(cell, &cell.user, &step, &line)?;
    // Slurm's own extern step sleeps as well.
    let copies = || {
        let all = cell.bed.job_processes();
        let shells: Vec<i32> = all
            .iter()
            .filter(|process| process.name == "sh")
            .map(|process| process.pid)
            .collect();
        let of_copy = |process: &&Process| shells.contains(&process.parent) && process.name == "sleep";
        all.iter().filter(of_copy).count()
    };
    cell.bed
        .wait_until("four sleeping processes of two copies", LIMIT, || {
            Ok(copies() == 4)
        })?;
    job.signal(Signal::SIGTERM)?;
    let ended = job.wait(LIMIT)?;
    ensure!(!ended.status.success(), "it was ended: {}", ended.stdout);
    cell.bed.wait_until("no sleeping process", LIMIT, || {
        let all = cell.bed.job_processes();
        Ok(!all
            .iter()
            .any(|process| ["sleep", "sh", "mpsctl"].contains(&process.name.as_str())))
    })
}
