//! What users type: flags in a script, values that are refused before a job exists, and many jobs
//! at once.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use tests::slurm::{Options, Record};

use crate::jobs::{check_daemons, records};
use crate::runner::{Context, Group, cells, fast};

const CELLS: &[crate::runner::Cell] = cells![
    flags_in_a_script_are_in_force,
    bad_values_are_refused_at_submission,
    a_job_without_a_gpu_is_told_at_submission
];

pub const OPTIONAL: Group = Group::new("submission_optional", CELLS);

pub const REQUIRED: Group = Group::required("submission_required", CELLS);

/// Four nodes. On a busy host a daemon may take longer than on a node of its own.
pub const BURST: Group = Group {
    options: || Options {
        nodes: 4,
        ..Options::default()
    },
    prepare: |bed| fast(bed, "deadline_s = 60\n"),
    ..Group::new("burst", cells![two_hundred_jobs_at_once_leave_nothing])
};

fn flags_in_a_script_are_in_force(cell: &Context) -> Result<()> {
    let line = cell.client("--hold 0.2");
    let script =
        format!("#SBATCH --mps\n#SBATCH --mps-mem=2G\n({line})\nsrun -N2 /bin/sh -c '{line}'");
    let (job, said) = cell.batch("-N2 --gres=gpu:1", &script)?;
    let records = records(&said)?;
    ensure!(records.len() == 3, "script and step: {said}");
    check_daemons(&records, cell.user.uid, 1)?;
    let id = job.to_string();
    let right = |record: &Record| {
        record.job.as_deref() == Some(&id) && record.memory_limit_mib == Some(2048)
    };
    ensure!(records.iter().all(right), "{records:?}");
    Ok(())
}

fn bad_values_are_refused_at_submission(cell: &Context) -> Result<()> {
    for flag in [
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
    ] {
        for (command, program) in [
            ("srun", "/bin/true"),
            ("sbatch", "--wrap=true"),
            ("salloc", "/bin/true"),
        ] {
            let done = cell
                .run(&format!("{command} {flag} {program}"), "")?
                .fails()?;
            let ours: Vec<_> = done
                .stderr
                .lines()
                .filter(|line| line.contains("mps: "))
                .collect();
            let told =
                matches!(ours[..], [line] if line.contains(flag) && line.contains("allowed:"));
            ensure!(told, "no single line of ours: {}", done.story());
        }
    }
    let queue = cell.root("squeue -h")?;
    ensure!(queue.is_empty(), "a refused job is queued: {queue}");
    Ok(())
}

/// Slurm tells its plugins the options of the command line and the script.
fn a_job_without_a_gpu_is_told_at_submission(cell: &Context) -> Result<()> {
    let home = cell.bed.home(&cell.user);
    for (script, line) in [("gpu.sh", "--gres=gpu:1"), ("none.sh", "-n1")] {
        std::fs::write(
            home.join(script),
            format!("#!/bin/sh\n#SBATCH --mps {line}\n"),
        )?;
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
        let ours = done
            .stderr
            .lines()
            .filter(|line| line.contains("--gres=gpu:1"));
        ensure!(ours.count() == told, "{words}: {}", done.story());
    }
    Ok(())
}

const JOBS: usize = 200;

fn two_hundred_jobs_at_once_leave_nothing(cell: &Context) -> Result<()> {
    for _ in 0..JOBS {
        let words = "--mps --mps-threads=50 --gres=gpu:1 --output=burst.out --open-mode=append";
        cell.submit(words, &cell.client(""))?;
    }
    let ended = cell.bed.wait_idle(Duration::from_secs(400));
    let said = std::fs::read_to_string(cell.bed.home(&cell.user).join("burst.out"))?;
    let others = said.lines().filter(|line| !line.starts_with('{'));
    let (reports, complaints): (Vec<_>, Vec<_>) =
        others.partition(|line| line.contains("; mpsctl report "));
    ensure!(complaints.is_empty(), "{complaints:?}");
    ensure!(reports.len() == JOBS, "a line for each job: {reports:?}");
    ended?;
    let records = records(&said)?;
    let jobs: BTreeSet<_> = records
        .iter()
        .filter_map(|record| record.job.clone())
        .collect();
    let nodes: BTreeSet<_> = records.iter().map(|record| &record.node).collect();
    let counts = (records.len(), jobs.len());
    ensure!(counts == (JOBS, JOBS), "records and jobs: {counts:?}");
    ensure!(nodes.len() == 4, "all nodes took part: {nodes:?}");
    let right =
        |record: &&Record| record.under_mps && record.error.is_none() && record.sms == Some(66);
    let wrong: Vec<_> = records.iter().filter(|record| !right(record)).collect();
    ensure!(wrong.is_empty(), "without their MPS or limits: {wrong:?}");
    Ok(())
}
