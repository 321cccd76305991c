//! A node without room in its run directory. mpsd cannot write there, not even for the job's tasks,
//! and still a user who asked reads why.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use tests::scarcity::Small;

use crate::jobs::{ONE_GPU, holds, says};
use crate::runner::{Context, Group, cells};

pub const GROUP: Group = Group::fast(
    "no_room",
    "deadline_s = 4\n",
    cells![
        srun_reads_what_ran_out,
        sbatch_reads_what_ran_out,
        salloc_reads_what_ran_out,
    ],
);

/// Inodes of node1's run directory, and what its user reads.
const FILES: usize = 256;
const WORDS: &str = "of 256 inodes free";

/// Tries it on node1 with few inodes: too few for anything, and for the vendor's daemon.
fn with_few_inodes(cell: &Context, attempt: impl Fn() -> Result<()>) -> Result<()> {
    for left in [0, 5] {
        let run = cell.bed.run_dir().join("node1");
        fs::create_dir_all(&run)?;
        let small = Small::seen_by_all(&run, FILES, 0o711);
        small.leave_files(left);
        let tried = attempt().and_then(|()| cell.idle());
        tried.with_context(|| format!("{left} inodes"))?;
    }
    cell.check_in_service()
}

/// Of a job, and of a step that asks alone.
fn srun_reads_what_ran_out(cell: &Context) -> Result<()> {
    let job = format!("srun {ONE_GPU} /bin/echo ran");
    let step = "salloc -w node1 --gres=gpu:1 srun --mps /bin/echo ran";
    for command in [&job, step] {
        with_few_inodes(cell, || {
            let done = cell.run(command, "")?.fails()?;
            holds(!done.stdout.contains("ran\n"), &done)?;
            says(&done.stderr, &[WORDS])
        })?;
    }
    cell.check_node1_serves()
}

/// Waits until the output and the comment of a script that must not run say what ran out, and
/// `also`.
fn script(cell: &Context, words: &str, also: &str) -> Result<()> {
    let job = cell.submit(&format!("{words} {ONE_GPU}"), "echo ran")?;
    let mut told = String::new();
    let ended = cell.wait("what its user reads", || {
        told = cell.shown(job)? + &cell.output(job);
        let has_all = told.contains(WORDS) && told.contains(also);
        Ok(has_all || told.contains("ran\n"))
    });
    // Time for the script, if it wrongly runs, to write.
    std::thread::sleep(std::time::Duration::from_millis(500));
    told += &cell.output(job);
    cell.bed.root(&["scancel", &job.to_string()])?;
    ended.with_context(|| told.clone())?;
    cell.idle()?;
    ensure!(!told.contains("ran\n"), "the script ran: {told}");
    Ok(())
}

/// Also a script whose flags get lost on the way to the node.
fn sbatch_reads_what_ran_out(cell: &Context) -> Result<()> {
    with_few_inodes(cell, || {
        // Slurm counts the restart a moment after our comment.
        script(cell, "--requeue", "Restarts=1")?;
        script(cell, "--no-requeue", "")?;
        script(cell, "--no-requeue --export=NONE", "")
    })
}

fn salloc_reads_what_ran_out(cell: &Context) -> Result<()> {
    let command = format!("salloc {ONE_GPU} /bin/sleep 1");
    with_few_inodes(cell, || {
        says(&cell.run(&command, "")?.success()?.stderr, &[WORDS])
    })
}
