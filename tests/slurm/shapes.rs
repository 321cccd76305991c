//! Jobs side by side, inside one another, run again, cut off; and what a task sees of its GPUs.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::slurm::{Options, Record, User};

use crate::mps::{LIMIT, check_daemons, clients, ended, nodes, records, run, simulated, start};
use crate::runner::{Context, Group};

/// One bed for all of them.
pub const GROUP: Group = Group {
    name: "shapes",
    options: Options::default,
    prepare: simulated,
    needs: || None,
    cells: &[
        ("two_users_on_one_node", two_users_on_one_node),
        (
            "two_jobs_of_one_user_on_one_node",
            two_jobs_of_one_user_on_one_node,
        ),
        ("a_job_run_again", a_job_run_again),
        ("a_cancelled_job", a_cancelled_job),
        ("one_step_opts_out", one_step_opts_out),
        ("a_job_submitted_by_a_job", a_job_submitted_by_a_job),
        ("a_batch_job_without_environment", a_batch_job_without_environment),
        ("gpus_per_task", gpus_per_task),
        ("gpu_bind", gpu_bind),
        ("overlapping_steps", overlapping_steps),
        ("a_node_for_itself", a_node_for_itself),
        (
            "two_steps_with_daemons_of_their_own",
            two_steps_with_daemons_of_their_own,
        ),
        ("a_killed_slurmstepd", a_killed_slurmstepd),
    ],
};

fn two_users_on_one_node(cell: &Context) -> Result<()> {
    side_by_side(cell, [&cell.user, &cell.other])
}

fn two_jobs_of_one_user_on_one_node(cell: &Context) -> Result<()> {
    side_by_side(cell, [&cell.user, &cell.user])
}

fn side_by_side(cell: &Context, users: [&User; 2]) -> Result<()> {
    let line = nodes(cell)?.client("--hold 1.5");
    let command = ["srun", "--mps", "-w", "node1", "-n2", "--gres=gpu:1"];
    let jobs = users.map(|user| start(cell, user, &command, &line));
    let mut daemons = BTreeSet::new();
    let mut gpus = BTreeSet::new();
    for (job, user) in jobs.into_iter().zip(users) {
        let records = ended(job?)?;
        ensure!(records.len() == 2, "two clients expected: {records:?}");
        check_daemons(&records, user.uid, 1)?;
        daemons.extend(records.iter().map(|record| record.daemon_pid));
        gpus.extend(records.iter().flat_map(|record| record.uuids.clone()));
    }
    ensure!(
        daemons.len() == 2 && gpus.len() == 2,
        "a daemon and a GPU each: {daemons:?} {gpus:?}"
    );
    Ok(())
}

/// The same job id again: the second run has a daemon of its own.
fn a_job_run_again(cell: &Context) -> Result<()> {
    let line = nodes(cell)?.client("--hold 0.2");
    let script = format!("({line})\n[ \"$SLURM_RESTART_COUNT\" = 1 ] && exit 0\nsleep 30");
    let arguments = ["--mps", "--gres=gpu:1", "--requeue", "--open-mode=append"];
    let job = cell.bed.sbatch(&cell.user, &arguments, &script)?;
    cell.bed.wait_until("the first run's client", LIMIT, || {
        Ok(cell.bed.output(&cell.user, job).ends_with("}\n"))
    })?;
    let id = job.to_string();
    cell.bed.root(&["scontrol", "requeue", &id])?.success()?;
    cell.bed.wait_job(job, &["PENDING"], LIMIT)?;
    // Slurm makes a requeued job wait two minutes; at once, its credential would be the one that was just revoked.
    cell.bed.wait_until("a new start time", LIMIT, || {
        let update = ["scontrol", "update", &format!("jobid={id}"), "starttime=now+3"];
        Ok(cell.bed.root(&update)?.status.success())
    })?;
    let ended = cell.bed.wait_job(job, &["COMPLETED"], LIMIT);
    let said = cell.bed.output(&cell.user, job);
    ended.with_context(|| format!("the second run; the job wrote\n{said}"))?;
    let records = records(&said, "")?;
    ensure!(records.len() == 2, "two runs: {records:?}");
    check_daemons(&records[..1], cell.user.uid, 1)?;
    check_daemons(&records[1..], cell.user.uid, 1)?;
    ensure!(
        records[0].daemon_pid != records[1].daemon_pid,
        "one daemon for two runs: {records:?}"
    );
    Ok(())
}

/// `scancel` in the middle, with a client that ignores SIGTERM.
fn a_cancelled_job(cell: &Context) -> Result<()> {
    let line = nodes(cell)?.client("--hold 60 --ignore-term");
    let job = cell.bed.sbatch(&cell.user, &["--mps", "--gres=gpu:1"], &line)?;
    cell.bed.wait_until("the client", LIMIT, || {
        Ok(cell.bed.output(&cell.user, job).ends_with("}\n"))
    })?;
    cell.bed
        .spawn(&cell.user, &["scancel", &job.to_string()])?
        .wait(LIMIT)?
        .success()?;
    cell.bed.wait_job(job, &["CANCELLED"], LIMIT)?;
    Ok(())
}

fn one_step_opts_out(cell: &Context) -> Result<()> {
    let line = nodes(cell)?.client("");
    let command = ["salloc", "--mps", "--gres=gpu:1", "srun", "--mps=off"];
    let done = start(cell, &cell.user, &command, &line)?.wait(LIMIT)?.exits(1)?;
    ensure!(done.stdout.is_empty(), "the step ran: {}", done.stdout);
    let told = done.stderr.contains("--mps=off") && done.stderr.contains("EXCLUSIVE_PROCESS");
    ensure!(told, "no reason for the user: {}", done.stderr);
    Ok(())
}

/// From inside an MPS job, onto the same node: the second job outlives the first's epilogue and has none of its variables.
fn a_job_submitted_by_a_job(cell: &Context) -> Result<()> {
    let client = nodes(cell)?.client("--hold 0.1");
    let second = nodes(cell)?.client("--hold 4");
    let script = format!(
        "sbatch --parsable -w node1 --gres=gpu:1 --output=second.out --wrap '{second}'\n({client})\nsleep 1"
    );
    let job = cell
        .bed
        .sbatch(&cell.user, &["--mps", "-w", "node1", "--gres=gpu:1"], &script)?;
    cell.bed.wait_job(job, &["COMPLETED"], LIMIT)?;
    let said = cell.bed.output(&cell.user, job);
    let inner: u32 = said
        .lines()
        .next()
        .unwrap_or_default()
        .parse()
        .with_context(|| said.clone())?;
    ensure!(
        cell.bed.job_state(inner)? == "RUNNING",
        "the inner job is gone: {}",
        cell.bed.situation()
    );
    cell.bed.wait_job(inner, &["COMPLETED"], LIMIT)?;
    let first = records(&said, "")?;
    check_daemons(&first, cell.user.uid, 1)?;
    let file = cell.bed.home(&cell.user).join("second.out");
    let second = Record::all(&std::fs::read_to_string(&file)?)?;
    std::fs::remove_file(file)?;
    let [second] = &second[..] else {
        anyhow::bail!("one record expected: {second:?}")
    };
    let inherited = (&second.pipe_directory, &second.job);
    // sbatch exports the options of the job around it: what it asked for is asked for again.
    match second.under_mps {
        true => ensure!(
            second.job.as_deref() == Some(&inner.to_string()),
            "the first job's MPS: {second:?}"
        ),
        false => ensure!(
            inherited == (&None, &None),
            "variables of the first job: {second:?}"
        ),
    }
    ensure!(
        second.daemon_pid != first[0].daemon_pid,
        "attached to the first job's daemon: {second:?}"
    );
    Ok(())
}

/// `--export=NONE`: the batch step does not see the option, and has its MPS all the same.
fn a_batch_job_without_environment(cell: &Context) -> Result<()> {
    let line = nodes(cell)?.client("--hold 0.1");
    // The option --export=NONE takes the environment away, and with it where this cluster is.
    let conf = format!("export SLURM_CONF={}/etc/slurm.conf", cell.bed.dir().display());
    let script = format!("{conf}\n({line})\nsrun /bin/sh -c '{line}'");
    let job = cell
        .bed
        .sbatch(&cell.user, &["--mps", "--export=NONE", "--gres=gpu:1"], &script)?;
    cell.bed.wait_job(job, &["COMPLETED"], LIMIT)?;
    let records = records(&cell.bed.output(&cell.user, job), "")?;
    ensure!(records.len() == 2, "script and step: {records:?}");
    check_daemons(&records, cell.user.uid, 1)
}

fn gpus_per_task(cell: &Context) -> Result<()> {
    own_gpu_each(cell, &["--mps", "-N1", "-n2", "--gpus-per-task=1"])
}

fn gpu_bind(cell: &Context) -> Result<()> {
    own_gpu_each(
        cell,
        &["--mps", "-N1", "-n2", "--gres=gpu:2", "--gpu-bind=single:1"],
    )
}

fn own_gpu_each(cell: &Context, arguments: &[&str]) -> Result<()> {
    let records = clients(cell, arguments, "--hold 0.2")?;
    ensure!(records.len() == 2, "two clients expected: {records:?}");
    check_daemons(&records, cell.user.uid, 1)?;
    let gpus: BTreeSet<_> = records.iter().flat_map(|record| &record.uuids).collect();
    let one_each = records.iter().all(|record| record.uuids.len() == 1);
    ensure!(one_each && gpus.len() == 2, "a GPU each: {records:?}");
    Ok(())
}

fn overlapping_steps(cell: &Context) -> Result<()> {
    let line = nodes(cell)?.client("--hold 0.5");
    let step = format!("srun --overlap -n2 --gres=gpu:2 /bin/sh -c '{line}'");
    let shell = format!("{step} & first=$!; {step} & wait $! && wait $first");
    let records = run(cell, &["salloc", "--mps", "-N1", "-n2", "--gres=gpu:2"], &shell)?;
    ensure!(records.len() == 4, "two steps of two clients: {records:?}");
    check_daemons(&records, cell.user.uid, 1)
}

fn a_node_for_itself(cell: &Context) -> Result<()> {
    let records = clients(
        cell,
        &["--mps", "--exclusive", "-N1", "-n2", "--gres=gpu:1"],
        "--hold 0.2",
    )?;
    check_daemons(&records, cell.user.uid, 1)
}

/// Two steps with `--mps` at the same time in a job without: a daemon each.
fn two_steps_with_daemons_of_their_own(cell: &Context) -> Result<()> {
    let records = two_steps_with_mps(cell)?;
    check_daemons(&records[..1], cell.user.uid, 1)?;
    check_daemons(&records[1..], cell.user.uid, 1)?;
    ensure!(
        records[0].daemon_pid != records[1].daemon_pid,
        "one daemon for two steps: {records:?}"
    );
    Ok(())
}

/// Two steps with `--mps` and a GPU each at the same time in a job without; their records.
pub fn two_steps_with_mps(cell: &Context) -> Result<Vec<Record>> {
    let line = nodes(cell)?.client("--hold 1");
    let step = format!("srun --mps --exact -n1 --gres=gpu:1 /bin/sh -c '{line}'");
    let shell = format!("{step} & first=$!; {step} & wait $! && wait $first");
    let records = run(cell, &["salloc", "-N1", "-n2", "--gres=gpu:2"], &shell)?;
    ensure!(records.len() == 2, "two clients expected: {records:?}");
    Ok(records)
}

/// The step's own daemon, where nobody can call the step's exit callback: job_epilog cleans up.
fn a_killed_slurmstepd(cell: &Context) -> Result<()> {
    let line = nodes(cell)?.client("--hold 3");
    let job = start(
        cell,
        &cell.user,
        &["salloc", "-N1", "--gres=gpu:1", "srun", "--mps"],
        &line,
    )?;
    let simulated = nodes(cell)?;
    let clients = || {
        simulated
            .nodes
            .iter()
            .flat_map(|node| node.contexts())
            .filter(|(_, context)| context.kind == "mps")
    };
    cell.bed
        .wait_until("the step's client", LIMIT, || Ok(clients().count() == 1))?;
    let stepds: Vec<_> = cell
        .bed
        .job_processes()
        .into_iter()
        .filter(|process| {
            process
                .argv
                .first()
                .is_some_and(|name| name.starts_with("slurmstepd: ["))
        })
        .filter(|process| !process.argv[0].contains("extern"))
        .collect();
    let [stepd] = &stepds[..] else {
        anyhow::bail!("one slurmstepd expected: {stepds:?}")
    };
    kill(Pid::from_raw(stepd.pid), Signal::SIGKILL)?;
    // Slurm itself does not notice: the job is ended from outside.
    cell.bed
        .root(&["scancel", "--user", &cell.user.name])?
        .success()?;
    job.wait(LIMIT)?;
    cell.bed
        .wait_until("the daemon's end", Duration::from_secs(30), || {
            Ok(simulated.nodes.iter().all(|node| node.daemons().is_empty()))
        })
}
