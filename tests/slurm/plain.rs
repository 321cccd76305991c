//! The bed itself, without any plugin: what the other groups rely on.

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::slurm::Options;

use crate::runner::{Context, Group};

const LIMIT: Duration = Duration::from_secs(30);

/// Plain jobs on two nodes with simulated GPUs.
pub const GROUP: Group = Group {
    name: "plain",
    options: Options::default,
    prepare: |_| Ok(None),
    needs: || None,
    cells: &[
        ("srun_on_two_nodes", srun_on_two_nodes),
        ("gpus_are_allocated", gpus_are_allocated),
        ("sbatch_and_its_output", sbatch_and_its_output),
        ("salloc_with_steps", salloc_with_steps),
        ("a_restarted_slurmd_takes_jobs", a_restarted_slurmd_takes_jobs),
        ("a_drain_shows_its_reason", a_drain_shows_its_reason),
        ("a_process_left_behind_is_seen", a_process_left_behind_is_seen),
    ],
};

fn srun_on_two_nodes(cell: &Context) -> Result<()> {
    let arguments = [
        "-N2",
        "--ntasks-per-node=2",
        "-l",
        "/bin/sh",
        "-c",
        "echo $SLURMD_NODENAME $(id -u)",
    ];
    let said = cell.bed.srun(&cell.user, &arguments, LIMIT)?.success()?.stdout;
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    let uid = cell.user.uid;
    let expected = [
        format!("0: node1 {uid}"),
        format!("1: node1 {uid}"),
        format!("2: node2 {uid}"),
        format!("3: node2 {uid}"),
    ];
    ensure!(lines == expected, "srun said {lines:?}");
    Ok(())
}

fn gpus_are_allocated(cell: &Context) -> Result<()> {
    let arguments = [
        "-N2",
        "--gres=gpu:2",
        "/bin/sh",
        "-c",
        "echo $CUDA_VISIBLE_DEVICES $SLURM_STEP_GPUS",
    ];
    let said = cell.bed.srun(&cell.user, &arguments, LIMIT)?.success()?.stdout;
    ensure!(said.lines().eq(["0,1 0,1", "0,1 0,1"]), "srun said '{said}'");
    let refused = cell
        .bed
        .srun(&cell.user, &["--gres=gpu:3", "true"], LIMIT)?
        .exits(1)?;
    ensure!(
        refused
            .stderr
            .contains("Requested node configuration is not available"),
        "{}",
        refused.stderr
    );
    Ok(())
}

fn sbatch_and_its_output(cell: &Context) -> Result<()> {
    let job = cell
        .bed
        .sbatch(&cell.user, &["-N2"], "srun -N2 /bin/echo from the step")?;
    cell.bed.wait_job(job, &["COMPLETED"], LIMIT)?;
    let said = cell.bed.output(&cell.user, job);
    ensure!(
        said.lines().eq(["from the step", "from the step"]),
        "job {job} wrote '{said}'"
    );
    Ok(())
}

fn salloc_with_steps(cell: &Context) -> Result<()> {
    let arguments = [
        "salloc",
        "-N2",
        "--gres=gpu:1",
        "srun",
        "-n2",
        "/bin/sh",
        "-c",
        "echo $SLURM_STEP_GPUS",
    ];
    let done = cell.bed.spawn(&cell.user, &arguments)?.wait(LIMIT)?.success()?;
    ensure!(
        done.stdout.lines().eq(["0", "0"]),
        "salloc said '{}'",
        done.stdout
    );
    Ok(())
}

fn a_restarted_slurmd_takes_jobs(cell: &Context) -> Result<()> {
    cell.bed.stop_node("node2")?;
    cell.bed.start_node("node2")?;
    let said = cell
        .bed
        .srun(&cell.user, &["-w", "node2", "/bin/echo", "again"], LIMIT)?
        .success()?
        .stdout;
    ensure!(said == "again\n", "srun said '{said}'");
    Ok(())
}

fn a_drain_shows_its_reason(cell: &Context) -> Result<()> {
    cell.bed
        .root(&[
            "scontrol",
            "update",
            "nodename=node1",
            "state=drain",
            "reason=two words",
        ])?
        .success()?;
    let node = cell.bed.node_state("node1")?;
    ensure!(
        node.state == "IDLE+DRAIN" && node.reason.starts_with("two words"),
        "{node:?}"
    );
    cell.bed.resume("node1")?;
    cell.bed.wait_idle(LIMIT)?;
    let node = cell.bed.node_state("node1")?;
    ensure!(node.state == "IDLE" && node.reason.is_empty(), "{node:?}");
    Ok(())
}

/// The look that all other cells rely on must see a daemon that escaped its step with a cleared environment.
fn a_process_left_behind_is_seen(cell: &Context) -> Result<()> {
    let script = "setsid env -i /bin/sleep 31 >/dev/null 2>&1 </dev/null & exit 0";
    cell.bed
        .srun(&cell.user, &["/bin/sh", "-c", script], LIMIT)?
        .success()?;
    cell.bed.wait_idle(LIMIT)?;
    let sleeper = cell
        .bed
        .job_processes()
        .into_iter()
        .find(|process| process.argv == ["/bin/sleep", "31"]);
    let Some(sleeper) = sleeper else {
        anyhow::bail!("an escaped process is not seen: {:?}", cell.bed.left_behind());
    };
    let seen = cell.bed.left_behind();
    ensure!(
        seen.iter().any(|item| item.ends_with("/bin/sleep 31")),
        "{seen:?}"
    );
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(sleeper.pid),
        nix::sys::signal::Signal::SIGKILL,
    )?;
    Ok(())
}
