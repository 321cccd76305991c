//! Jobs on a cluster that runs for years: suspended, preempted, entered from outside
//! (docs/operations.md).

use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use tests::slurm::{Options, User};

use crate::failures::starts_again_soon;
use crate::jobs::{LIMIT, check_bare, check_daemons, holds, records};
use crate::runner::{Context, Group, KEEP, cells};

/// Jobs of `urgent` preempt others: jobs in `low` are requeued, jobs in `paused` are suspended.
pub const GROUP: Group = Group {
    options: || Options {
        slurm_lines: vec![
            "PreemptType=preempt/partition_prio".into(),
            "PreemptMode=SUSPEND,GANG".into(),
            "JobSubmitPlugins=lua".into(),
        ],
        partition_lines: vec![
            "PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE State=UP".into(),
            "PartitionName=paused Nodes=ALL PriorityTier=1 PreemptMode=SUSPEND State=UP".into(),
            "PartitionName=debug Nodes=ALL State=UP".into(),
            "PartitionName=urgent Nodes=ALL PriorityTier=9 PreemptMode=OFF State=UP".into(),
        ],
        ..Options::default()
    },
    prepare: |bed, nodes| {
        std::fs::write(bed.dir().join("etc/job_submit.lua"), FORBIDS)?;
        starts_again_soon(bed, nodes)
    },
    ..Group::fast(
        "operations",
        KEEP,
        cells![
            a_suspended_job_can_be_cancelled,
            a_preempted_job_gets_its_mps_again,
            a_preempted_job_is_suspended_and_goes_on,
            a_shell_from_outside_attaches_by_the_jobs_id,
            a_step_from_outside_is_as_one_from_inside,
            the_site_forbids_it_at_submission,
        ],
    )
};

const FORBIDS: &str = include_str!("../../docs/examples/job_submit.lua");

/// A batch job with its MPS ready, and a client that runs for this long.
fn running(cell: &Context, words: &str, seconds: u32) -> Result<u32> {
    let script = cell.client(&format!("--hold {seconds}"));
    let job = cell.submit(&format!("--mps -w node1 --gres=gpu:2 {words}"), &script)?;
    cell.wait_ready(1)?;
    Ok(job)
}

fn completed(cell: &Context, job: u32) -> Result<()> {
    cell.bed.wait_job(job, &["COMPLETED"], LIMIT)?;
    check_daemons(&records(&cell.output(job))?, cell.user.uid, 1)
}

fn a_suspended_job_can_be_cancelled(cell: &Context) -> Result<()> {
    let job = running(cell, "", 60)?;
    cell.root(&format!("scontrol suspend {job}"))?;
    cell.wait_shown(job, &["JobState=SUSPENDED "])?;
    cell.cancel(job)?;
    cell.check_in_service()
}

/// The second job has the same GPUs with its own MPS. The first starts again with one.
fn a_preempted_job_gets_its_mps_again(cell: &Context) -> Result<()> {
    let first = running(cell, "--partition=low --requeue", 2)?;
    let urgent = cell.clients("--mps --partition=urgent -w node1 --gres=gpu:2", "")?;
    check_daemons(&urgent, cell.user.uid, 1)?;
    cell.wait_shown(first, &["Restarts=1 "])?;
    completed(cell, first)
}

/// Slurm keeps a suspended job's GPUs, so the second job uses only CPUs.
fn a_preempted_job_is_suspended_and_goes_on(cell: &Context) -> Result<()> {
    let first = running(cell, "--partition=paused --exclusive", 3)?;
    let urgent = cell.clients("--partition=urgent -w node1", "");
    if let Ok(bare) = &urgent {
        check_bare(bare)?;
    }
    completed(cell, first)?;
    urgent.map(drop)
}

/// An ssh session that pam_slurm_adopt put into the job has no variable of ours.
fn a_shell_from_outside_attaches_by_the_jobs_id(cell: &Context) -> Result<()> {
    let job = running(cell, "", 60)?;
    let line = cell.client("").replace("$SLURMD_NODENAME", "node1");
    let outside = |user: &User, exec: &str| {
        let env = [("SLURMD_NODENAME", "node1")];
        cell.start_as(user, exec, &line, &env)?.wait(LIMIT)
    };
    let bare = outside(&cell.user, "env")?;
    check_bare(&records(&bare.said())?)?;
    let exec = format!("{} exec --job {job} --", cell.mpsctl());
    let attached = outside(&cell.user, &exec)?.success()?;
    check_daemons(&records(&attached.said())?, cell.user.uid, 1)?;
    let another = outside(&cell.other, &exec)?.fails()?;
    holds(another.stdout.is_empty(), &another.story())?;
    cell.cancel(job)
}

/// 50 % of 132 multiprocessors are 66, 25 % are 32 (recorded).
fn a_step_from_outside_is_as_one_from_inside(cell: &Context) -> Result<()> {
    let job = running(cell, "--mps-threads=50 --ntasks=2", 60)?;
    for (words, sms) in [
        ("", 66),
        ("--mps", 66),
        ("--mps-threads=25", 32),
        ("--mps --mps-threads=25", 32),
    ] {
        let step = format!("--jobid={job} --overlap -n2 {words}");
        let records = cell.clients(&step, "--hold 0.1")?;
        check_daemons(&records, cell.user.uid, 1)?;
        let given: Vec<_> = records.iter().map(|record| record.sms).collect();
        ensure!(given == [Some(sms); 2], "{words}: {given:?}");
    }
    let step = format!("srun --jobid={job} --overlap --mps-threads=75");
    cell.check_refused(&step, &["--mps-threads=75", "50"])?;
    cell.cancel(job)?;

    let bare = cell.submit("-w node1 --gres=gpu:1", "exec sleep 60")?;
    cell.wait_shown(bare, &["JobState=RUNNING "])?;
    let step = format!("srun --jobid={bare} --overlap --mps-threads=25");
    cell.check_refused(&step, &["--mps-threads=25: MPS itself is not asked for"])?;
    cell.cancel(bare)
}

fn the_site_forbids_it_at_submission(cell: &Context) -> Result<()> {
    for command in ["srun", "salloc", "sbatch --wrap=true"] {
        let words = ["--mps: not in partition debug", "allowed: --partition=main"];
        let is_batch = command.starts_with("sbatch");
        let line = if is_batch { "" } else { "true" };
        for partitions in ["debug", "main,debug"] {
            let command = format!("{command} --partition={partitions} --gres=gpu:1 --mps");
            cell.check_refused_with(&command, line, &[], &words)?;
        }
    }
    // The default partition has no name in the request. slurmctld reads a file that is newer by a
    // second.
    let file = cell.bed.dir().join("etc/job_submit.lua");
    let write = |text: &str, seconds: u64| {
        std::fs::write(&file, text)?;
        let newer = SystemTime::now() + Duration::from_secs(seconds);
        let file = std::fs::File::options().write(true).open(&file)?;
        file.set_modified(newer)
    };
    let forbids = FORBIDS.replace("may_be_in(\"debug\"", "may_be_in(\"main\"");
    write(&forbids, 2)?;
    let words = ["--mps: not in partition debug"];
    cell.check_refused_with("srun --gres=gpu:1 --mps", "true", &[], &words)?;
    write(FORBIDS, 4)?;
    for words in ["", "--mps=off"] {
        let words = format!("--partition=debug -w node1 --gres=gpu:1 {words}");
        check_bare(&cell.clients(&words, "")?)?;
    }
    cell.check_node1_serves()
}
