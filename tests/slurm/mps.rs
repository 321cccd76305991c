//! The main job in every way to ask for it: each cell asserts on the clients' own records.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tests::slurm::{Bed, Client, Options, Record, SMS, Simulated, User, Word};

use crate::runner::{Cell, Context, Group};

/// Longest that one command may take.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Under the word that the package ships.
pub const OPTIONAL: Group = Group {
    name: "mps_optional",
    options: optional,
    prepare: simulated,
    needs: || None,
    cells: CELLS,
};

/// Under the other word: every promise holds likewise.
pub const REQUIRED: Group = Group {
    name: "mps_required",
    options: required,
    prepare: simulated,
    needs: || None,
    cells: CELLS,
};

const CELLS: &[Cell] = &[
    ("a_plain_job_is_untouched", a_plain_job_is_untouched),
    ("srun_on_two_nodes", srun_on_two_nodes),
    ("limits_by_local_rank", limits_by_local_rank),
    ("sbatch_with_inner_srun", sbatch_with_inner_srun),
    (
        "bad_values_are_refused_at_submission",
        bad_values_are_refused_at_submission,
    ),
];

fn optional() -> Options {
    Options::default()
}

/// The default bed under the other word.
pub fn required() -> Options {
    Options {
        word: Word::Required,
        ..Options::default()
    }
}

/// Simulated nodes with a plain configuration.
pub fn simulated(bed: &mut Bed) -> Result<Option<Simulated>> {
    Simulated::install(bed, "", |node| node).map(Some)
}

/// The simulated nodes of a cell.
pub fn nodes(cell: &Context) -> Result<&Simulated> {
    cell.simulated.as_ref().context("this bed has no simulated nodes")
}

/// Starts `COMMAND /bin/sh -c LINE` as `user`.
pub fn start(cell: &Context, user: &User, command: &[&str], line: &str) -> Result<Client> {
    cell.bed
        .spawn(user, &[command, &["/bin/sh", "-c", line]].concat())
}

/// The same as the cell's own user, to its good end; the records of the clients in it.
pub fn run(cell: &Context, command: &[&str], line: &str) -> Result<Vec<Record>> {
    ended(start(cell, &cell.user, command, line)?)
}

/// The records of the clients in a command, which must end well.
pub fn ended(command: Client) -> Result<Vec<Record>> {
    let done = command.wait(LIMIT)?.success()?;
    records(&done.stdout, &done.stderr)
}

/// `srun ARGUMENTS` with the client of each node, to its end; the clients' records.
pub fn clients(cell: &Context, arguments: &[&str], client: &str) -> Result<Vec<Record>> {
    run(
        cell,
        &[&["srun"], arguments].concat(),
        &nodes(cell)?.client(client),
    )
}

/// The records in a command's output; an error shows what it said on stderr.
pub fn records(stdout: &str, stderr: &str) -> Result<Vec<Record>> {
    let records = Record::all(stdout)?;
    ensure!(!records.is_empty(), "no client wrote a record:\n{stdout}{stderr}");
    Ok(records)
}

/// Pids of the control daemons that the clients attached to, by node.
pub fn daemons(records: &[Record]) -> BTreeMap<String, BTreeSet<i32>> {
    let mut found: BTreeMap<String, BTreeSet<i32>> = BTreeMap::new();
    for record in records {
        found
            .entry(record.node.clone())
            .or_default()
            .extend(record.daemon_pid);
    }
    found
}

/// Checks that every client ran under MPS as `uid`, and that those of a node shared `count` daemons.
pub fn check_daemons(records: &[Record], uid: u32, count: usize) -> Result<()> {
    for record in records {
        ensure!(
            record.under_mps && record.error.is_none(),
            "not under MPS: {record:?}"
        );
        ensure!(record.uid == Some(uid), "as another user than {uid}: {record:?}");
    }
    let daemons = daemons(records);
    ensure!(
        daemons.values().all(|pids| pids.len() == count),
        "{count} daemons a node expected: {daemons:?}"
    );
    Ok(())
}

fn a_plain_job_is_untouched(cell: &Context) -> Result<()> {
    let line = format!("env; ls {}", cell.bed.run_dir().display());
    let done = cell
        .bed
        .srun(&cell.user, &["--gres=gpu:1", "/bin/sh", "-c", &line], LIMIT)?
        .success()?;
    for word in ["CUDA_MPS", "MPSD", "node1/jobs"] {
        ensure!(
            !done.stdout.contains(word),
            "a plain job sees '{word}':\n{}",
            done.stdout
        );
    }
    ensure!(
        done.stdout.contains("CUDA_VISIBLE_DEVICES=0\n"),
        "the GPU is renamed:\n{}",
        done.stdout
    );
    ensure!(done.stderr.is_empty(), "a plain job is told '{}'", done.stderr);
    let records = clients(cell, &["--gres=gpu:1"], "")?;
    ensure!(records.iter().all(|record| !record.under_mps), "{records:?}");
    Ok(())
}

fn srun_on_two_nodes(cell: &Context) -> Result<()> {
    let simulated = nodes(cell)?;
    let limits = ["srun", "--mps", "--mps-threads=50", "--mps-mem=4G"];
    let shape = ["-N2", "--ntasks-per-node=2", "--gres=gpu:2"];
    let line = simulated.client("--hold 1");
    let job = start(cell, &cell.user, &[&limits[..], &shape].concat(), &line)?;
    // While it runs: the compute mode of the job's GPUs, and whose the daemon is.
    cell.bed.wait_until("exclusive GPUs on both nodes", LIMIT, || {
        Ok(simulated
            .nodes
            .iter()
            .all(|node| node.modes().iter().all(|mode| mode == "exclusive_process")))
    })?;
    cell.bed
        .wait_until("a daemon and its server on both nodes", LIMIT, || {
            Ok(simulated.nodes.iter().all(|node| node.daemons().len() == 2))
        })?;
    for node in &simulated.nodes {
        let daemons = node.daemons();
        ensure!(
            daemons.iter().all(|process| process.uid == cell.user.uid),
            "daemons of another user: {daemons:?}"
        );
    }
    let records = ended(job)?;
    ensure!(records.len() == 4, "four clients expected: {records:?}");
    check_daemons(&records, cell.user.uid, 1)?;
    for record in &records {
        ensure!(
            record.sms == Some(SMS / 2),
            "50 % of {SMS} multiprocessors: {record:?}"
        );
        ensure!(record.memory_limit_mib == Some(4096), "4 GiB: {record:?}");
        let node = simulated.node(&record.node)?;
        ensure!(record.uuids == node.uuids(), "the job's two GPUs: {record:?}");
    }
    ensure!(daemons(&records).len() == 2, "both nodes: {records:?}");
    Ok(())
}

fn limits_by_local_rank(cell: &Context) -> Result<()> {
    let arguments = ["--mps", "--mps-threads=25:75", "-N1", "-n2", "--gres=gpu:1"];
    let mut records = clients(cell, &arguments, "--hold 0.2")?;
    records.sort_by_key(|record| record.local_rank);
    check_daemons(&records, cell.user.uid, 1)?;
    let sms: Vec<_> = records.iter().map(|record| record.sms).collect();
    // 25 % of 132 is 33, and the granularity of the hardware makes it 32 (recorded on an H200).
    ensure!(sms == [Some(32), Some(98)], "25 and 75 %: {records:?}");
    Ok(())
}

fn sbatch_with_inner_srun(cell: &Context) -> Result<()> {
    let line = nodes(cell)?.client("--hold 0.2");
    let script = format!("#SBATCH --mps\n#SBATCH --mps-mem=2G\n({line})\nsrun -N2 /bin/sh -c '{line}'");
    let job = cell.bed.sbatch(&cell.user, &["-N2", "--gres=gpu:1"], &script)?;
    cell.bed
        .wait_job(job, &["COMPLETED", "FAILED", "CANCELLED"], LIMIT)?;
    let said = cell.bed.output(&cell.user, job);
    let records = records(&said, "")?;
    ensure!(
        records.len() == 3,
        "the script's client and two of the step: {said}"
    );
    check_daemons(&records, cell.user.uid, 1)?;
    for record in &records {
        ensure!(
            record.job.as_deref() == Some(&job.to_string()),
            "MPSD_JOB: {record:?}"
        );
        ensure!(record.memory_limit_mib == Some(2048), "2 GiB: {record:?}");
    }
    Ok(())
}

fn bad_values_are_refused_at_submission(cell: &Context) -> Result<()> {
    let bad = [
        "--mps=maybe",
        "--mps-threads=0",
        "--mps-threads=101",
        "--mps-threads=abc",
        "--mps-threads=NaN",
        "--mps-mem=3X",
        "--mps-mem=4",
        "--mps-mem=0G",
        "--mps-replicas=0",
        "--mps-priority=high",
    ];
    for flag in bad {
        for command in ["srun", "sbatch", "salloc"] {
            let argv: &[&str] = match command {
                "sbatch" => &["sbatch", flag, "--wrap=true"],
                _ => &[command, flag, "/bin/true"],
            };
            let done = cell.bed.spawn(&cell.user, argv)?.wait(LIMIT)?;
            if done.status.success() {
                bail!("'{}' was accepted", done.command);
            }
            let ours: Vec<_> = done
                .stderr
                .lines()
                .filter(|line| line.contains("mps: "))
                .collect();
            let tells = ours.len() == 1 && ours[0].contains(flag) && ours[0].contains("allowed:");
            ensure!(
                tells,
                "'{}' said no single line with flag and what is allowed: {}",
                done.command,
                done.stderr
            );
        }
    }
    let queue = cell.bed.root(&["squeue", "-h"])?.success()?.stdout;
    ensure!(queue.is_empty(), "a refused job is queued: {queue}");
    Ok(())
}
