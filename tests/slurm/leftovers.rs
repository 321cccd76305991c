//! `mpsctl reconcile` with a real slurmctld: jobs that it no longer has are removed, and jobs that it
//! has stay.

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use tests::node_bed::send;
use tests::slurm::{Client, Options, User};

use crate::jobs::{LIMIT, holds, says};
use crate::runner::{Context, Group, KEEP, cells};

pub const GROUP: Group = Group::fast(
    "leftovers",
    KEEP,
    cells![
        only_what_slurm_has_let_go_is_taken_down,
        steps_of_an_array_are_left_alone,
    ],
);

/// One node on the host, as in production.
pub const ALONE: Group = Group {
    options: || Options {
        nodes: 1,
        ..Options::default()
    },
    ..Group::new(
        "leftovers_alone",
        cells![a_job_that_runs_asks_no_controller],
    )
};

const NEVER: &str = "999999";

/// Starts a daemon as Slurm's plugin does, for a job or a step that Slurm does not have.
fn orphan(cell: &Context, job: &str, gpu: &str, more: &str) -> Result<()> {
    let product = &cell.nodes.product;
    let (programs, config) = (product.libexec.display(), product.config.display());
    let command = format!(
        "{programs}/mps-prologue --config {config} --scheduler slurm --request MPS=true {more}"
    );
    let uid = cell.user.uid.to_string();
    let env = [
        ("SLURM_JOB_ID", job),
        ("SLURM_JOB_UID", uid.as_str()),
        ("SLURM_JOB_GPUS", gpu),
        ("SLURM_STEP_GPUS", gpu),
        ("SLURMD_NODENAME", "node1"),
    ];
    let client = cell.start_as(&User::root(), &command, "", &env)?;
    client.wait(LIMIT)?.success().map(drop)
}

fn left_alone(id: &str) -> String {
    format!("job {id}: its scheduler has it here: left alone")
}

fn end(cell: &Context, client: Client, job: &str) -> Result<()> {
    client.signal(Signal::SIGKILL)?;
    let _ = client.wait(LIMIT)?;
    cell.cancel(job)
}

fn only_what_slurm_has_let_go_is_taken_down(cell: &Context) -> Result<()> {
    let client = cell.start("srun --mps -w node1 --gres=gpu:1 /bin/sleep 60", "")?;
    let job = cell.wait_ready(1)?.remove(0);
    orphan(cell, NEVER, "1", "")?;
    orphan(cell, &job, "0", "--step 77")?;
    let done = cell.root_mpsctl("reconcile --node node1")?;
    let said = done.success()?.said();
    let never = format!("job {NEVER}: gone (slurmctld has no such job on this node): taken down");
    let step = format!("job {job}.77: gone (slurmctld has no such step on this node): taken down");
    says(&said, &[&left_alone(&job), &never, &step])?;
    holds(client.runs() && cell.ready("node1") == [job.clone()], &said)?;
    let jobs = cell.bed.run_dir().join("node1/jobs");
    let left = [NEVER, &format!("{job}.77")].map(|name| jobs.join(name).exists());
    holds(left == [false; 2], &said)?;
    end(cell, client, &job)
}

/// The timers of ten thousand nodes must not load the controller: the job's slurmstepd shows that
/// the job is here.
fn a_job_that_runs_asks_no_controller(cell: &Context) -> Result<()> {
    let client = cell.start("srun --mps --gres=gpu:1 /bin/sleep 60", "")?;
    let job = cell.wait_ready(1)?.remove(0);
    let controller = cell.bed.daemon("slurmctld").context("no slurmctld")?;
    send(controller, Signal::SIGSTOP)?;
    let told = cell.root_mpsctl("reconcile --node node1");
    send(controller, Signal::SIGCONT)?;
    says(&told?.success()?.said(), &[&left_alone(&job)])?;
    end(cell, client, &job)
}

/// Slurm shows an array's jobs and steps under other names than their ids.
fn steps_of_an_array_are_left_alone(cell: &Context) -> Result<()> {
    let script = "srun --mps --overlap /bin/sleep 60";
    let array = cell.submit("--array=1-2 -w node1 --gres=gpu:1", script)?;
    let steps = cell.wait_ready(2)?;
    holds(steps.iter().all(|id| id.ends_with(".0")), &steps)?;
    let done = cell.root_mpsctl("reconcile --node node1")?;
    let said = done.success()?.said();
    for step in &steps {
        says(&said, &[&left_alone(step)])?;
    }
    holds(cell.ready("node1") == steps, &said)?;
    cell.cancel(array)
}
