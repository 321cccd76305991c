//! A node that does not load the plugin, because of another plugstack.conf or a plugin of another
//! release. The submitting hosts do load it. With both words, a user who asks reads why not, and
//! the program does not run there. A user who does not ask sees nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Result, ensure};
use tests::slurm::{Options, Word};

use crate::jobs::{LIMIT, ONE_GPU, check_daemons, holds, records, says};
use crate::runner::{Cell, Context, Group, cells};

pub const OPTIONAL: Group = Group {
    options: || options(Word::Optional),
    ..Group::new("unplugged_optional", CELLS)
};

pub const REQUIRED: Group = Group {
    options: || options(Word::Required),
    ..Group::new("unplugged_required", CELLS)
};

const CELLS: &[Cell] = cells![
    a_command_that_asks_reads_why_once,
    a_script_that_asks_reads_why_once,
    a_task_prolog_of_the_users_runs,
    a_user_who_does_not_ask_sees_nothing,
];

fn options(word: Word) -> Options {
    Options {
        word,
        plain_nodes: vec!["node2".into()],
        ..Options::default()
    }
}

/// Checks that one line says it, with the node's name, and that `ran` is nowhere.
fn check_told_once(said: &str) -> Result<()> {
    let ours = said.lines().filter(|line| line.contains("did not load"));
    let ours: Vec<&str> = ours.collect();
    let right = matches!(ours[..], [line] if line.contains("node2") && line.contains("--mps"));
    ensure!(right && !said.contains("ran\n"), "{said}");
    Ok(())
}

fn a_command_that_asks_reads_why_once(cell: &Context) -> Result<()> {
    let half = "[ $SLURMD_NODENAME = node1 ] || echo ran; sleep 20";
    for (command, line) in [
        ("srun --mps -w node2 -n2 --gres=gpu:1", "echo ran"),
        // Slurm exports its own variables even so.
        ("srun --mps --export=NONE -w node2 --gres=gpu:1", "echo ran"),
        ("srun --mps -N2 -K --gres=gpu:1", half),
        ("salloc --mps -w node2 --gres=gpu:1 srun", "echo ran"),
        ("salloc -w node2 --gres=gpu:1 srun --mps", "echo ran"),
    ] {
        let done = cell.run(command, line)?.fails()?;
        check_told_once(&done.said())?;
        cell.idle()?;
    }
    let off = "salloc --mps -w node2 --gres=gpu:1 srun --mps=off";
    let done = cell.run(off, "echo ran")?.success()?;
    holds(done.stdout == "ran\n", &done)
}

/// A bash script, and the step of a script that runs under MPS on node1.
fn a_script_that_asks_reads_why_once(cell: &Context) -> Result<()> {
    let step = "srun -N1 -n1 -w node2 --gres=gpu:1 /bin/echo ran";
    for (words, script) in [
        ("-w node2", "#!/bin/bash\necho ran"),
        ("-N2 -w node[1-2]", step),
    ] {
        let job = cell.submit(&format!("--mps --gres=gpu:1 {words}"), script)?;
        cell.idle()?;
        check_told_once(&cell.output(job))?;
    }
    Ok(())
}

fn a_task_prolog_of_the_users_runs(cell: &Context) -> Result<()> {
    let script = cell.bed.dir().join("task-prolog");
    let text = "#!/bin/sh\necho export FROM_PROLOG=$SLURM_PROCID\necho print said by it\n";
    fs::write(&script, text)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let script = script.display().to_string();
    let flag = format!("--task-prolog={script}");
    let line = format!("echo from $FROM_PROLOG; env; {}", cell.client(""));
    let variable = [("SLURM_TASK_PROLOG", script.as_str())];
    for (command, env) in [
        (format!("srun {ONE_GPU} {flag}"), &[][..]),
        (format!("srun {ONE_GPU}"), &variable),
        (format!("srun {ONE_GPU} {flag} --export=NONE"), &[]),
        (format!("salloc {ONE_GPU} srun {flag}"), &[]),
    ] {
        let client = cell.start_as(&cell.user, &command, &line, env)?;
        let done = client.wait(LIMIT)?.success()?;
        says(&done.stdout, &["from 0\n", "said by it\n"])?;
        let trace = done.stdout.contains("MPSD_TASK");
        ensure!(!trace, "a trace is left: {done:?}");
        check_daemons(&records(&done.stdout)?, cell.user.uid, 1)?;
    }
    fs::set_permissions(&script, fs::Permissions::from_mode(0o644))?;
    let done = cell.run(&format!("srun {ONE_GPU} {flag}"), &line)?;
    let told = format!("the task prolog '{script}' cannot be run on node");
    says(&done.stdout, &[&told])?;
    let done = done.fails()?;
    holds(!done.stdout.contains("from "), &done)
}

/// On a node with the plugin, a user who asked finds no BASH_ENV either.
fn a_user_who_does_not_ask_sees_nothing(cell: &Context) -> Result<()> {
    for node in ["node1", "node2"] {
        let done = cell.run(&format!("srun -w {node} --gres=gpu:1"), "env")?;
        let done = done.success()?;
        for word in ["TASK_PROLOG", "MPSD", "BASH_ENV"] {
            let sees = done.stdout.contains(word);
            ensure!(!sees, "{node}: a plain job sees '{word}': {done:?}");
        }
        holds(done.stderr.is_empty(), &done)?;
    }
    let (_, said) = cell.batch(ONE_GPU, "#!/bin/bash\nenv; bash -c env")?;
    ensure!(!said.contains("BASH_ENV"), "a script under MPS: {said}");
    cell.check_node1_serves()
}
