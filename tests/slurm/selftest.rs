//! `mpsctl selftest` of an ordinary user on a real Slurm. The job's probe is a client of the double
//! under the probe's name.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::Result;
use nix::sys::signal::Signal;
use serde_json::Value;
use tests::child::Ran;
use tests::slurm::{Bed, Client, Options, Simulated};

use crate::jobs::{LIMIT, holds, says};
use crate::runner::{Context, Group, cells};

/// The stack of node2 has nothing of ours.
pub const GROUP: Group = Group {
    options: || Options {
        plain_nodes: vec!["node2".into()],
        ..Options::default()
    },
    prepare,
    ..Group::fast(
        "selftest",
        "",
        cells![
            a_healthy_node_passes,
            a_node_without_the_plugin_fails,
            a_submitting_host_without_the_line_fails,
            its_own_job_is_cancelled,
            it_is_not_for_root_and_not_for_a_job,
        ],
    )
};

fn prepare(_: &mut Bed, nodes: &mut Simulated) -> Result<()> {
    let probe = nodes.product.libexec.join("mps-probe");
    fs::write(&probe, format!("#!/bin/sh\n{}\n", nodes.client("\"$@\"")))?;
    Ok(fs::set_permissions(
        &probe,
        fs::Permissions::from_mode(0o755),
    )?)
}

fn start(cell: &Context, words: &str, env: &[(&str, &str)]) -> Result<Client> {
    let command = format!("{} selftest {words}", cell.mpsctl());
    cell.start_as(&cell.user, &command, "", env)
}

fn run(cell: &Context, words: &str) -> Result<Ran> {
    start(cell, words, &[])?.wait(LIMIT)
}

/// Checks that the lines begin with `heads`, and have `words` somewhere.
fn check(done: &Ran, heads: &[&str], words: &[&str]) -> Result<()> {
    let lines = done.stdout.lines();
    let found = lines.map(|line| line.split(':').next().unwrap_or(line));
    holds(found.eq(heads.iter().copied()), done)?;
    says(&done.stdout, words)
}

fn a_healthy_node_passes(cell: &Context) -> Result<()> {
    let done = run(cell, "-- --nodelist=node1")?.success()?;
    let heads = [
        "OK    scheduler",
        "OK    job",
        "OK    attached",
        "OK    limits",
        "OK    selftest",
    ];
    let words = ["it ran on", "with 66 multiprocessors", "of the 1024 MiB"];
    check(&done, &heads, &words)?;
    let done = run(cell, "--json -- --nodelist=node1")?.success()?;
    let told: Value = serde_json::from_str(&done.stdout)?;
    let findings = told["findings"].as_array().map(Vec::len);
    holds(told["worst"] == "OK" && findings == Some(4), &told)
}

const FAILS: [&str; 3] = ["OK    scheduler", "FAIL  job", "FAIL  selftest"];

fn a_node_without_the_plugin_fails(cell: &Context) -> Result<()> {
    let done = run(cell, "-- --nodelist=node2")?.exits(2)?;
    let advice = "on that node, as root: 'mpsctl slurm enable'";
    check(&done, &FAILS, &["node2", "did not load", advice])
}

fn a_submitting_host_without_the_line_fails(cell: &Context) -> Result<()> {
    let client = start(cell, "", &[("SLURM_CONF", &cell.bed.plain_conf())])?;
    let done = client.wait(LIMIT)?.exits(2)?;
    check(&done, &FAILS, &["run 'mpsctl slurm enable' here"])
}

fn its_own_job_is_cancelled(cell: &Context) -> Result<()> {
    let queue = || cell.root("squeue --noheader --format=%j");
    let done = run(cell, "--wait 1 -- --begin=now+600")?.exits(2)?;
    // Slurm's word for why the job waits.
    let words = ["it had not ended after 1 s, and was canceled", "BeginTime"];
    says(&done.stdout, &words)?;
    cell.wait("an empty queue", || Ok(queue()?.is_empty()))?;
    let job = start(cell, "-- --begin=now+600", &[])?;
    cell.wait("a job in the queue", || Ok(queue()?.contains("mpsd-")))?;
    job.signal(Signal::SIGINT)?;
    says(&job.wait(LIMIT)?.exits(2)?.stderr, &["ended by SIGINT"])?;
    cell.wait("an empty queue", || Ok(queue()?.is_empty()))
}

fn it_is_not_for_root_and_not_for_a_job(cell: &Context) -> Result<()> {
    let done = cell.root_mpsctl("selftest")?.exits(1)?;
    says(&done.stderr, &["an ordinary user"])?;
    let client = start(cell, "", &[("SLURM_JOB_ID", "7")])?;
    let done = client.wait(LIMIT)?.exits(1)?;
    says(&done.stderr, &["this is job 7"])
}
