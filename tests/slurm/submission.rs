//! What users type: values that are refused before a job exists, and jobs without a GPU.

use crate::runner::{Cell, Context, Group, cells};
use anyhow::{Result, ensure};

const CELLS: &[Cell] = cells![
    bad_values_are_refused_at_submission,
    a_job_without_a_gpu_is_told_at_submission
];

pub const OPTIONAL: Group = Group::new("submission_optional", CELLS);

pub const REQUIRED: Group = Group::new("submission_required", CELLS).required();

fn bad_values_are_refused_at_submission(cell: &Context) -> Result<()> {
    for (command, flag, program) in [
        ("srun", "--mps=maybe", "/bin/true"),
        ("sbatch", "--mps-threads=101", "--wrap=true"),
        ("salloc", "--mps-mem=4", "/bin/true"),
    ] {
        let done = cell
            .run(&format!("{command} {flag} {program}"), "")?
            .fails()?;
        let ours = done.stderr.lines().filter(|line| line.contains("mps: "));
        let ours: Vec<_> = ours.collect();
        let told = matches!(ours[..], [line] if line.contains(flag) && line.contains("allowed:"));
        ensure!(told, "no single line of ours: {}", done.story());
    }
    let queue = cell.root("squeue -h")?;
    ensure!(queue.is_empty(), "a refused job is queued: {queue}");
    Ok(())
}

/// Slurm tells its plugins the options of the command line and the script.
fn a_job_without_a_gpu_is_told_at_submission(cell: &Context) -> Result<()> {
    let home = cell.bed.home(&cell.user);
    for (script, line) in [("gpu.sh", "--gres=gpu:1"), ("none.sh", "-n1")] {
        let text = format!("#!/bin/sh\n#SBATCH --mps {line}\n");
        std::fs::write(home.join(script), text)?;
    }
    for (words, told) in [
        ("srun --test-only --mps /bin/true", 1),
        ("srun --test-only --mps --gpus-per-task=1 -n1 /bin/true", 0),
        ("srun --test-only --mps --exclusive /bin/true", 0),
        ("sbatch --test-only none.sh", 1),
        ("sbatch --test-only gpu.sh", 0),
        ("sbatch --test-only --gpus=1 none.sh", 0),
        ("salloc -w nowhere --mps /bin/true", 1),
        ("salloc -w nowhere --mps -G1 /bin/true", 0),
    ] {
        let done = cell.run(words, "")?;
        let count = done.stderr.matches("--gres=gpu:1").count();
        ensure!(count == told, "{words}: {}", done.story());
    }
    Ok(())
}
