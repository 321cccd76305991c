//! `mpsctl selftest` of an ordinary user on a real Slurm: where all is well, and where it is not. The probe that a job runs is a client of
//! the double's under that name.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use tests::slurm::{Bed, Client, Finished, Options, Simulated};

use crate::mps::{LIMIT, nodes};
use crate::runner::{Context, Group};

/// On node2 nothing of ours is in the stack.
pub const GROUP: Group = Group {
    name: "selftest",
    options: || Options {
        plain_nodes: vec!["node2".into()],
        ..Options::default()
    },
    prepare,
    needs: || None,
    cells: &[
        ("a_healthy_node", a_healthy_node),
        ("a_node_without_the_plugin", a_node_without_the_plugin),
        (
            "a_submitting_host_without_the_line",
            a_submitting_host_without_the_line,
        ),
        ("its_own_job_is_cancelled", its_own_job_is_cancelled),
        ("not_for_root_and_not_in_a_job", not_for_root_and_not_in_a_job),
    ],
};

fn prepare(bed: &mut Bed) -> Result<Option<Simulated>> {
    let simulated = Simulated::install(bed, "", |node| node.fast())?;
    let probe = simulated.product.libexec.join("mps-probe");
    fs::write(&probe, format!("#!/bin/sh\n{}\n", simulated.client("\"$@\"")))?;
    fs::set_permissions(&probe, fs::Permissions::from_mode(0o755))?;
    Ok(Some(simulated))
}

fn start(cell: &Context, words: &[&str], extra: &[(&str, &str)]) -> Result<Client> {
    let product = &nodes(cell)?.product;
    let (program, config) = (
        product.libexec.join("mpsctl"),
        product.config.display().to_string(),
    );
    let program = program.display().to_string();
    let argv = [&[&*program, "--config", &config, "selftest"], words].concat();
    cell.bed.spawn_with(&cell.user, &argv, extra)
}

fn run(cell: &Context, words: &[&str]) -> Result<Finished> {
    start(cell, words, &[])?.wait(LIMIT)
}

/// The beginnings of the lines, up to the first colon.
fn heads(said: &str) -> Vec<String> {
    let head = |line: &str| line.split(':').next().unwrap_or(line).to_owned();
    said.lines().map(head).collect()
}

fn a_healthy_node(cell: &Context) -> Result<()> {
    let done = run(cell, &["--", "--nodelist=node1"])?.success()?;
    let expected = [
        "OK    scheduler",
        "OK    job",
        "OK    attached",
        "OK    limits",
        "OK    selftest",
    ];
    ensure!(heads(&done.stdout) == expected, "{}{}", done.stdout, done.stderr);
    for words in ["it ran on", "with 66 multiprocessors", "of the 1024 MiB"] {
        ensure!(done.stdout.contains(words), "no '{words}': {}", done.stdout);
    }
    let done = run(cell, &["--json", "--", "--nodelist=node1"])?.success()?;
    let told: Value = serde_json::from_str(&done.stdout)?;
    ensure!(
        told["worst"] == "OK" && told["findings"].as_array().is_some_and(|all| all.len() == 4),
        "{told}"
    );
    Ok(())
}

fn a_node_without_the_plugin(cell: &Context) -> Result<()> {
    let done = run(cell, &["--", "--nodelist=node2"])?.exits(2)?;
    ensure!(
        heads(&done.stdout) == ["OK    scheduler", "FAIL  job", "FAIL  selftest"],
        "{}",
        done.stdout
    );
    for words in [
        "node2",
        "did not load",
        "on that node, as root: 'mpsctl slurm enable'",
    ] {
        ensure!(done.stdout.contains(words), "no '{words}': {}", done.stdout);
    }
    Ok(())
}

fn a_submitting_host_without_the_line(cell: &Context) -> Result<()> {
    let conf = cell.bed.plain_conf();
    let done = start(cell, &[], &[("SLURM_CONF", &conf)])?
        .wait(LIMIT)?
        .exits(2)?;
    ensure!(
        heads(&done.stdout) == ["OK    scheduler", "FAIL  job", "FAIL  selftest"],
        "{}",
        done.stdout
    );
    ensure!(
        done.stdout.contains("run 'mpsctl slurm enable' here"),
        "{}",
        done.stdout
    );
    Ok(())
}

fn its_own_job_is_cancelled(cell: &Context) -> Result<()> {
    let queue = || -> Result<String> { Ok(cell.bed.root(&["squeue", "--noheader", "--format=%j"])?.stdout) };
    let late = ["--wait", "1", "--", "--begin=now+600"];
    let done = run(cell, &late)?.exits(2)?;
    ensure!(
        done.stdout
            .contains("it had not ended after 1 s, and was cancelled"),
        "{}",
        done.stdout
    );
    ensure!(
        done.stdout.contains("BeginTime"),
        "what it waits for: {}",
        done.stdout
    );
    cell.bed
        .wait_until("an empty queue", LIMIT, || Ok(queue()?.is_empty()))?;
    let job = start(cell, &["--", "--begin=now+600"], &[])?;
    cell.bed
        .wait_until("a job in the queue", LIMIT, || Ok(queue()?.contains("mpsd-")))?;
    job.signal(Signal::SIGINT)?;
    let done = job.wait(LIMIT)?.exits(2)?;
    ensure!(
        done.stderr.contains("ended by SIGINT"),
        "{}{}",
        done.stdout,
        done.stderr
    );
    cell.bed
        .wait_until("an empty queue", LIMIT, || Ok(queue()?.is_empty()))
}

fn not_for_root_and_not_in_a_job(cell: &Context) -> Result<()> {
    let product = &nodes(cell)?.product;
    let program = product.libexec.join("mpsctl").display().to_string();
    let done = cell.bed.root(&[&program, "selftest"])?.exits(1)?;
    ensure!(done.stderr.contains("an ordinary user"), "{}", done.stderr);
    let done = start(cell, &[], &[("SLURM_JOB_ID", "7")])?
        .wait(LIMIT)?
        .exits(1)?;
    ensure!(done.stderr.contains("this is job 7"), "{}", done.stderr);
    Ok(())
}
