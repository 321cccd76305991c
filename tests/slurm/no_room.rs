//! A node whose run directory has no room: nothing of ours can be written there, not even for the job's tasks, and still who
//! asked reads why.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use tests::scarcity::Small;
use tests::slurm::{Options, Simulated};

use crate::mps::{LIMIT, check_daemons, clients};
use crate::runner::{Cell, Context, Group};

/// One cluster for all of them.
pub const GROUP: Group = Group {
    name: "no_room",
    options: Options::default,
    prepare: |bed| Simulated::install(bed, "deadline_s = 4\n", |node| node.fast()).map(Some),
    needs: || None,
    cells: CELLS,
};

const CELLS: &[Cell] = &[
    ("srun_reads_what_ran_out", srun_reads_what_ran_out),
    ("a_step_reads_what_ran_out", a_step_reads_what_ran_out),
    ("sbatch_reads_what_ran_out", sbatch_reads_what_ran_out),
    (
        "a_script_without_its_environment_does_not_run",
        a_script_without_its_environment_does_not_run,
    ),
    ("salloc_reads_what_ran_out", salloc_reads_what_ran_out),
];

/// Inodes of node1's run directory.
const FILES: usize = 256;
/// What its user reads.
const WORDS: &str = "of 256 inodes free";
/// Too few for anything, for a record of ours, for the vendor's daemon.
const LEFT: [usize; 4] = [0, 3, 5, 7];

/// node1's run directory with `left` inodes.
fn node1(cell: &Context, left: usize) -> Result<Small> {
    let run = cell.bed.run_dir().join("node1");
    fs::create_dir_all(&run)?;
    let small = Small::seen_by_all(&run, FILES, 0o711);
    small.leave_files(left);
    Ok(small)
}

/// Runs a command of which nothing may write `ran`; what its user reads has the cause.
fn check_told(cell: &Context, argv: &[&str]) -> Result<()> {
    let done = cell.bed.spawn(&cell.user, argv)?.wait(LIMIT)?;
    ensure!(!done.stdout.contains("ran\n"), "it ran: {done:?}");
    ensure!(!done.status.success(), "it succeeded: {done:?}");
    ensure!(done.stderr.contains(WORDS), "not told: {done:?}");
    cell.bed.wait_idle(LIMIT)
}

fn check_undrained(cell: &Context) -> Result<()> {
    let state = cell.bed.node_state("node1")?;
    ensure!(!state.state.contains("DRAIN"), "drained: {state:?}");
    Ok(())
}

fn srun_reads_what_ran_out(cell: &Context) -> Result<()> {
    for left in LEFT {
        let _small = node1(cell, left)?;
        let argv = ["srun", "--mps", "-w", "node1", "--gres=gpu:1", "/bin/echo", "ran"];
        check_told(cell, &argv).with_context(|| format!("{left} inodes"))?;
    }
    check_undrained(cell)?;
    let records = clients(cell, &["--mps", "-w", "node1", "--gres=gpu:1"], "")?;
    check_daemons(&records, cell.user.uid, 1)
}

fn a_step_reads_what_ran_out(cell: &Context) -> Result<()> {
    for left in LEFT {
        let _small = node1(cell, left)?;
        let job = ["salloc", "-w", "node1", "--gres=gpu:1"];
        let step = ["srun", "--mps", "/bin/echo", "ran"];
        check_told(cell, &[&job[..], &step].concat()).with_context(|| format!("{left} inodes"))?;
    }
    check_undrained(cell)
}

/// What the output and the comment of a script say that must not run: it ends, or goes back into the queue.
fn script(cell: &Context, words: &[&str]) -> Result<String> {
    let argv = [words, &["--mps", "-w", "node1", "--gres=gpu:1"]].concat();
    let job = cell.bed.sbatch(&cell.user, &argv, "echo ran")?;
    let id = job.to_string();
    let mut told = String::new();
    let ended = cell.bed.wait_until("what its user reads", LIMIT, || {
        let words = ["scontrol", "-o", "show", "job", &id];
        told = cell.bed.root(&words)?.stdout + &cell.bed.output(&cell.user, job);
        Ok(told.contains(WORDS) || told.contains("ran\n"))
    });
    // A script that runs beside it shows.
    std::thread::sleep(std::time::Duration::from_millis(500));
    told += &cell.bed.output(&cell.user, job);
    cell.bed.root(&["scancel", &id])?;
    ended.with_context(|| told.clone())?;
    cell.bed.wait_idle(LIMIT)?;
    ensure!(!told.contains("ran\n"), "the script ran: {told}");
    Ok(told)
}

fn sbatch_reads_what_ran_out(cell: &Context) -> Result<()> {
    for left in LEFT {
        let _small = node1(cell, left)?;
        let told = script(cell, &["--requeue"]).with_context(|| format!("{left} inodes"))?;
        ensure!(told.contains("Restarts=1"), "{left} inodes: {told}");
        script(cell, &["--no-requeue"]).with_context(|| format!("{left} inodes"))?;
    }
    check_undrained(cell)
}

/// Its flags are lost on the way to the node.
fn a_script_without_its_environment_does_not_run(cell: &Context) -> Result<()> {
    for left in LEFT {
        let _small = node1(cell, left)?;
        let words = ["--no-requeue", "--export=NONE"];
        script(cell, &words).with_context(|| format!("{left} inodes"))?;
    }
    check_undrained(cell)
}

fn salloc_reads_what_ran_out(cell: &Context) -> Result<()> {
    for left in LEFT {
        let _small = node1(cell, left)?;
        let argv = [
            "salloc",
            "--mps",
            "-w",
            "node1",
            "--gres=gpu:1",
            "/bin/sleep",
            "1",
        ];
        let done = cell.bed.spawn(&cell.user, &argv)?.wait(LIMIT)?;
        ensure!(done.stderr.contains(WORDS), "{left} inodes: not told: {done:?}");
        ensure!(
            done.status.success(),
            "{left} inodes: its shell is ended: {done:?}"
        );
        cell.bed.wait_idle(LIMIT)?;
    }
    check_undrained(cell)
}
