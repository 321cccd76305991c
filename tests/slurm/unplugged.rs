//! A node that does not load the plugin, in a cluster whose submitting hosts do: another plugstack.conf, or a plugin of
//! another release. Who asks reads why not, under both words, and his program does not run there; who does not ask sees nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use tests::slurm::{Finished, Options, Word, stamp};

use crate::mps::{LIMIT, check_daemons, clients, nodes, records, simulated};
use crate::runner::{Cell, Context, Group};

/// Under the word that the package ships.
pub const OPTIONAL: Group = Group {
    name: "unplugged_optional",
    options: || options(Word::Optional),
    prepare: simulated,
    needs: || None,
    cells: CELLS,
};

/// Under the other word.
pub const REQUIRED: Group = Group {
    name: "unplugged_required",
    options: || options(Word::Required),
    prepare: simulated,
    needs: || None,
    cells: CELLS,
};

const CELLS: &[Cell] = &[
    ("srun_reads_why", srun_reads_why),
    ("one_bad_node_of_two", one_bad_node_of_two),
    ("a_plugin_of_another_release", a_plugin_of_another_release),
    ("sbatch_reads_why", sbatch_reads_why),
    ("a_step_of_sbatch_reads_why", a_step_of_sbatch_reads_why),
    ("a_step_of_salloc_reads_why", a_step_of_salloc_reads_why),
    ("a_task_prolog_of_the_users", a_task_prolog_of_the_users),
    ("who_does_not_ask_sees_nothing", who_does_not_ask_sees_nothing),
];

/// Slurm 23.11.5.
const OTHER: u32 = 0x0017_0b05;

fn options(word: Word) -> Options {
    Options {
        word,
        plain_nodes: vec!["node2".into()],
        ..Options::default()
    }
}

/// Runs a command that asks on node2: the reason is read, once, and `ran` is nowhere.
fn check_told(cell: &Context, argv: &[&str], extra: &[(&str, &str)]) -> Result<Finished> {
    let done = cell.bed.spawn_with(&cell.user, argv, extra)?.wait(LIMIT)?;
    ensure!(
        !done.status.success() && !done.stdout.contains("ran\n"),
        "the program ran: {done:?}"
    );
    check_words(&(done.stdout.clone() + &done.stderr))?;
    Ok(done)
}

fn check_words(said: &str) -> Result<()> {
    let ours: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("did not load"))
        .collect();
    ensure!(
        matches!(ours[..], [one] if one.contains("node2") && one.contains("--mps")),
        "told in one line with the node's name: {said}"
    );
    Ok(())
}

const RUN: [&str; 2] = ["/bin/echo", "ran"];

fn srun_reads_why(cell: &Context) -> Result<()> {
    let shape = ["srun", "--mps", "-w", "node2", "-n2", "--gres=gpu:1"];
    check_told(cell, &[&shape[..], &RUN].concat(), &[])?;
    // Slurm's own variables come along with --export=NONE.
    let argv = ["srun", "--mps", "--export=NONE", "-w", "node2", "--gres=gpu:1"];
    check_told(cell, &[&argv[..], &RUN].concat(), &[])?;
    cell.bed.wait_idle(LIMIT)
}

fn one_bad_node_of_two(cell: &Context) -> Result<()> {
    let argv = ["srun", "--mps", "-N2", "-K", "--gres=gpu:1", "/bin/sh", "-c"];
    let line = "[ $SLURMD_NODENAME = node1 ] || echo ran; sleep 20";
    check_told(cell, &[&argv[..], &[line]].concat(), &[])?;
    cell.bed.wait_idle(LIMIT)
}

/// The line is in the node's stack, and its plugin is one for another Slurm.
fn a_plugin_of_another_release(cell: &Context) -> Result<()> {
    let other = cell.bed.dir().join("lib/other.so");
    fs::copy(&nodes(cell)?.product.plugin, &other)?;
    stamp::write(&other, OTHER)?;
    let stack = cell.bed.dir().join("etc/no-plugstack.conf");
    let outcome = ["optional", "required"].into_iter().try_for_each(|word| {
        fs::write(&stack, format!("{word} {}\n", other.display()))?;
        let shape = ["srun", "--mps", "-w", "node2", "--gres=gpu:1"];
        let argv = [&shape[..], &RUN].concat();
        let done = cell.bed.spawn(&cell.user, &argv)?.wait(LIMIT)?;
        ensure!(
            !done.stdout.contains("ran\n"),
            "under {word}: the program ran: {done:?}"
        );
        if word == "optional" {
            return check_words(&(done.stdout + &done.stderr));
        }
        // Slurm itself ends such a step, of whoever.
        ensure!(!done.stderr.is_empty(), "nothing is told: {done:?}");
        Ok(())
    });
    fs::write(&stack, "")?;
    outcome?;
    cell.bed.wait_idle(LIMIT)?;
    cell.bed.resume("node2").or(Ok(()))
}

/// A script that bash runs.
fn sbatch_reads_why(cell: &Context) -> Result<()> {
    let said = batch_on(cell, &["--mps"], "node2", "#!/bin/bash\necho ran")?;
    ensure!(!said.contains("ran\n"), "the script ran: {said}");
    check_words(&said)
}

fn a_step_of_sbatch_reads_why(cell: &Context) -> Result<()> {
    // The script runs on node1, under MPS.
    let script = "srun -N1 -n1 -w node2 --gres=gpu:1 /bin/echo ran";
    let said = batch_on(cell, &["--mps", "-N2"], "node[1-2]", script)?;
    ensure!(!said.contains("ran\n"), "the step ran: {said}");
    check_words(&said)
}

fn a_step_of_salloc_reads_why(cell: &Context) -> Result<()> {
    let shape = ["salloc", "--mps", "-w", "node2", "--gres=gpu:1", "srun"];
    check_told(cell, &[&shape[..], &RUN].concat(), &[])?;
    let shape = ["salloc", "-w", "node2", "--gres=gpu:1", "srun", "--mps"];
    check_told(cell, &[&shape[..], &RUN].concat(), &[])?;
    // Who says no in the allocation is not kept from running.
    let argv = [
        "salloc",
        "--mps",
        "-w",
        "node2",
        "--gres=gpu:1",
        "srun",
        "--mps=off",
    ];
    let done = cell
        .bed
        .spawn(&cell.user, &[&argv[..], &RUN].concat())?
        .wait(LIMIT)?;
    ensure!(done.success()?.stdout == "ran\n", "a step that said no");
    cell.bed.wait_idle(LIMIT)
}

/// It runs where the job runs, and does what it did.
fn a_task_prolog_of_the_users(cell: &Context) -> Result<()> {
    let script: PathBuf = cell.bed.dir().join("task-prolog");
    fs::write(
        &script,
        "#!/bin/sh\necho export FROM_PROLOG=$SLURM_PROCID\necho print said by it\n",
    )?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let script = script.display().to_string();
    let flag = format!("--task-prolog={script}");
    let line = format!("echo from $FROM_PROLOG; env; {}", nodes(cell)?.client(""));
    let by_flag: (&[&str], &[(&str, &str)]) = (&[&flag], &[]);
    let variable = [("SLURM_TASK_PROLOG", script.as_str())];
    let no_export: (&[&str], &[(&str, &str)]) = (&[&flag, "--export=NONE"], &[]);
    for (words, extra) in [by_flag, (&[], &variable), no_export] {
        let shape = ["srun", "--mps", "-w", "node1", "--gres=gpu:1"];
        let argv = [&shape[..], words, &["/bin/sh", "-c", &line]].concat();
        let done = cell
            .bed
            .spawn_with(&cell.user, &argv, extra)?
            .wait(LIMIT)?
            .success()?;
        ensure!(
            done.stdout.contains("from 0\n") && done.stdout.contains("said by it\n"),
            "the user's own: {done:?}"
        );
        ensure!(!done.stdout.contains("MPSD_TASK"), "a trace is left: {done:?}");
        check_daemons(&records(&done.stdout, &done.stderr)?, cell.user.uid, 1)?;
    }
    // And in the steps of an allocation.
    let argv = [
        "salloc",
        "--mps",
        "-w",
        "node1",
        "--gres=gpu:1",
        "srun",
        &flag,
        "/bin/sh",
        "-c",
        &line,
    ];
    let done = cell.bed.spawn(&cell.user, &argv)?.wait(LIMIT)?.success()?;
    ensure!(done.stdout.contains("from 0\n"), "{done:?}");
    check_daemons(&records(&done.stdout, &done.stderr)?, cell.user.uid, 1)?;
    cell.bed.wait_idle(LIMIT)
}

fn who_does_not_ask_sees_nothing(cell: &Context) -> Result<()> {
    let line = "env; [ -z \"$BASH_ENV\" ] || echo BASH_ENV";
    for node in ["node1", "node2"] {
        let argv = ["srun", "-w", node, "--gres=gpu:1", "/bin/bash", "-c", line];
        let done = cell.bed.spawn(&cell.user, &argv)?.wait(LIMIT)?.success()?;
        for word in ["TASK_PROLOG", "MPSD", "BASH_ENV"] {
            ensure!(
                !done.stdout.contains(word),
                "{node}: a plain job sees '{word}': {}",
                done.stdout
            );
        }
        ensure!(done.stderr.is_empty(), "{}", done.stderr);
    }
    // And who asked, where all is well, finds his own BASH_ENV, or none.
    let said = batch_on(cell, &["--mps"], "node1", "#!/bin/bash\nenv; bash -c env")?;
    ensure!(!said.contains("BASH_ENV"), "a script under MPS: {said}");
    let records = clients(cell, &["--mps", "-w", "node1", "--gres=gpu:1"], "")?;
    check_daemons(&records, cell.user.uid, 1)
}

fn batch_on(cell: &Context, flags: &[&str], nodes: &str, script: &str) -> Result<String> {
    let argv = [flags, &["-w", nodes, "--gres=gpu:1"]].concat();
    let job = cell.bed.sbatch(&cell.user, &argv, script)?;
    let id = job.to_string();
    cell.bed.wait_until("the end of the batch job", LIMIT, || {
        let queue = cell.bed.root(&["squeue", "-h", "-a", "-j", &id, "-o", "%T"])?;
        Ok(queue.stdout.trim().is_empty())
    })?;
    let shown = cell.bed.job(job)?.context("the job is gone")?;
    let said = cell.bed.output(&cell.user, job);
    ensure!(!said.is_empty() || shown.contains_key("JobState"), "{shown:?}");
    cell.bed.wait_idle(LIMIT)?;
    Ok(said)
}
