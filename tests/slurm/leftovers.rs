//! `mpsctl reconcile` and `mpsctl undrain` against a real slurmctld: what it no longer has goes, what it has stays.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use tests::slurm::{Options, User};

use crate::mps::{LIMIT, nodes, simulated};
use crate::runner::{Context, Group};

/// The group.
pub const GROUP: Group = Group {
    name: "leftovers",
    options: Options::default,
    prepare: simulated,
    needs: || None,
    cells: &[
        (
            "only_what_slurm_has_let_go_is_taken_down",
            only_what_slurm_has_let_go,
        ),
        (
            "steps_of_an_array_are_left_alone",
            steps_of_an_array_are_left_alone,
        ),
        ("our_own_drain_is_lifted_and_no_other", our_own_drain_is_lifted),
        (
            "what_hung_is_looked_at_again_after_any_job",
            what_hung_is_looked_at_again_after_any_job,
        ),
    ],
};

/// Where one node is on the host, as everywhere but in a bed.
pub const ALONE: Group = Group {
    name: "leftovers_alone",
    options: || Options {
        nodes: 1,
        ..Options::default()
    },
    prepare: simulated,
    needs: || None,
    cells: &[(
        "a_job_that_runs_asks_no_controller",
        a_job_that_runs_asks_no_controller,
    )],
};

/// A job that no Slurm of a bed ever had.
const NEVER: &str = "999999";

/// `mpsctl VERB --node NODE` as root; its exit code and what it said.
pub fn mpsctl(cell: &Context, verb: &str, node: &str) -> Result<(Option<i32>, String)> {
    let product = &nodes(cell)?.product;
    let program = product.libexec.join("mpsctl").display().to_string();
    let config = product.config.display().to_string();
    let done = cell
        .bed
        .root(&[&program, "--config", &config, verb, "--node", node])?;
    Ok((done.status.code(), format!("{}{}", done.stdout, done.stderr)))
}

/// A daemon as Slurm's plugin starts it, for a job or a step that Slurm does not have.
fn orphan(cell: &Context, job: &str, gpu: &str, more: &[&str]) -> Result<()> {
    let product = &nodes(cell)?.product;
    let program = product.libexec.join("mps-prologue").display().to_string();
    let config = product.config.display().to_string();
    let argv = [
        &[
            program.as_str(),
            "--config",
            &config,
            "--scheduler",
            "slurm",
            "--request",
            "MPS=true",
        ],
        more,
    ]
    .concat();
    let uid = cell.user.uid.to_string();
    let env = [
        ("SLURM_JOB_ID", job),
        ("SLURM_JOB_UID", uid.as_str()),
        ("SLURM_JOB_GPUS", gpu),
        ("SLURM_STEP_GPUS", gpu),
        ("SLURMD_NODENAME", "node1"),
    ];
    cell.bed
        .spawn_with(&User::root(), &argv, &env)?
        .wait(LIMIT)?
        .success()?;
    Ok(())
}

fn only_what_slurm_has_let_go(cell: &Context) -> Result<()> {
    let argv = ["srun", "--mps", "-w", "node1", "--gres=gpu:1", "/bin/sleep", "60"];
    let mut client = cell.bed.spawn(&cell.user, &argv)?;
    let jobs = cell.bed.run_dir().join("node1/jobs");
    let job = running(&jobs)?;
    orphan(cell, NEVER, "1", &[])?;
    orphan(cell, &job, "0", &["--step", "77"])?;
    let (code, said) = mpsctl(cell, "reconcile", "node1")?;
    for line in [
        format!("job {job}: its scheduler has it here: left alone"),
        format!("job {NEVER}: gone (slurmctld has no such job on this node): taken down"),
        format!("job {job}.77: gone (slurmctld has no such step on this node): taken down"),
    ] {
        ensure!(said.contains(&line), "'{line}' is not there: {said}");
    }
    ensure!(code == Some(0), "exit code {code:?}: {said}");
    ensure!(
        client.runs()? && jobs.join(&job).join("record").exists(),
        "the running job lost its MPS: {said}"
    );
    ensure!(
        !jobs.join(NEVER).exists() && !jobs.join(format!("{job}.77")).exists(),
        "{said}"
    );
    client.signal(Signal::SIGKILL)?;
    let _ = client.wait(LIMIT)?;
    cell.bed.root(&["scancel", &job])?.success()?;
    Ok(())
}

/// The timers of ten thousand nodes must be no load for it: the job's slurmstepd says that it is here.
fn a_job_that_runs_asks_no_controller(cell: &Context) -> Result<()> {
    let argv = ["srun", "--mps", "--gres=gpu:1", "/bin/sleep", "60"];
    let client = cell.bed.spawn(&cell.user, &argv)?;
    let job = running(&cell.bed.run_dir().join("node1/jobs"))?;
    let controller = cell.bed.daemon("slurmctld").context("no slurmctld")?;
    let signal = |signal| nix::sys::signal::kill(nix::unistd::Pid::from_raw(controller), signal);
    signal(Signal::SIGSTOP)?;
    let told = mpsctl(cell, "reconcile", "node1");
    signal(Signal::SIGCONT)?;
    let (code, said) = told?;
    let line = format!("job {job}: its scheduler has it here: left alone");
    ensure!(code == Some(0) && said.contains(&line), "{code:?}: {said}");
    client.signal(Signal::SIGKILL)?;
    let _ = client.wait(LIMIT)?;
    cell.bed.root(&["scancel", &job])?.success()?;
    cell.bed.wait_idle(LIMIT)
}

/// Slurm shows an array's jobs and steps by another name than that of their own ids.
fn steps_of_an_array_are_left_alone(cell: &Context) -> Result<()> {
    let script = "#!/bin/sh\nsrun --mps --overlap /bin/sleep 60\n";
    let array = cell.bed.sbatch(
        &cell.user,
        &["--array=1-2", "-w", "node1", "--gres=gpu:1"],
        script,
    )?;
    let jobs = cell.bed.run_dir().join("node1/jobs");
    let end = Instant::now() + LIMIT;
    let steps = loop {
        let ready = ready(&jobs);
        if ready.len() == 2 {
            break ready;
        }
        ensure!(Instant::now() < end, "two steps expected: {ready:?}");
        std::thread::sleep(Duration::from_millis(100));
    };
    ensure!(steps.iter().all(|id| id.ends_with(".0")), "not steps: {steps:?}");
    let (code, said) = mpsctl(cell, "reconcile", "node1")?;
    for step in &steps {
        let line = format!("job {step}: its scheduler has it here: left alone");
        ensure!(said.contains(&line), "'{line}' is not there: {said}");
    }
    ensure!(
        code == Some(0) && ready(&jobs) == steps,
        "exit code {code:?}: {said}"
    );
    cell.bed.root(&["scancel", &array.to_string()])?.success()?;
    Ok(())
}

/// The ids of the jobs and steps with a ready daemon.
fn ready(jobs: &Path) -> Vec<String> {
    let names = fs::read_dir(jobs).into_iter().flatten().flatten();
    let is_ready = |name: &String| {
        fs::read_to_string(jobs.join(name).join("record")).is_ok_and(|record| record.contains("\"ready\""))
    };
    let mut ready: Vec<String> = names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(is_ready)
        .collect();
    ready.sort();
    ready
}

/// The id of the one job with a ready daemon.
fn running(jobs: &Path) -> Result<String> {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(job) = ready(jobs).pop() {
            return Ok(job);
        }
        ensure!(Instant::now() < end, "no job got its MPS in '{}'", jobs.display());
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn our_own_drain_is_lifted(cell: &Context) -> Result<()> {
    let reason = "mpsd: job 1: mps-server 691: state D after 10 s";
    let drains = cell.bed.dir().join("mpsd/node2/drains");
    fs::create_dir_all(&drains)?;
    let mark = |reason: &str| {
        let text = serde_json::json!({
            "version": 1, "scheduler": "slurm", "node": "node2", "reason": reason, "job": "1", "delivered": true,
            "slurm_conf": cell.bed.environment(&cell.user).get("SLURM_CONF"), "when": 1,
        });
        fs::write(drains.join("slurm-node2"), text.to_string()).context("marker")
    };
    for (shown, lifted) in [(reason, true), ("bad disk", false)] {
        mark(reason)?;
        let words = format!("reason={shown}");
        cell.bed
            .root(&["scontrol", "update", "nodename=node2", "state=drain", &words])?
            .success()?;
        let (_, said) = mpsctl(cell, "undrain", "node2")?;
        let state = cell.bed.node_state("node2")?;
        ensure!(
            state.state.contains("DRAIN") != lifted,
            "'{shown}': {said}: {state:?}"
        );
        ensure!(!drains.join("slurm-node2").exists(), "the marker stays: {said}");
    }
    cell.bed
        .root(&["scontrol", "update", "nodename=node2", "state=resume"])?
        .success()?;
    Ok(())
}

/// Noted as an epilogue does it; the process is gone by now, so the look forgets it.
fn what_hung_is_looked_at_again_after_any_job(cell: &Context) -> Result<()> {
    let run = cell.bed.run_dir().join("node1");
    let suspicion = serde_json::json!([{
        "suspect": {"process": {"pid": i32::MAX, "start_time": 1}}, "what": "mps-server 691", "since": 0,
        "job": NEVER, "scheduler": "slurm", "node": "node1", "uid": 1001, "prefix": "mpsd:", "gpus": [],
    }]);
    fs::create_dir_all(&run)?;
    fs::write(run.join("suspicions"), suspicion.to_string())?;
    fs::write(run.join("look-again"), "")?;
    cell.bed
        .srun(&cell.user, &["-w", "node1", "/bin/true"], LIMIT)?
        .success()?;
    cell.bed
        .wait_until("the second look", Duration::from_secs(10), || {
            Ok(!run.join("suspicions").exists() && !run.join("look-again").exists())
        })
}
