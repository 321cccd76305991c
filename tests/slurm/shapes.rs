//! Jobs side by side, inside each other, run again, cut off.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use tests::place::send;
use tests::slurm::{Options, Record};

use crate::jobs::{LIMIT, check_daemons, ended, gpus, holds, records, says};
use crate::runner::{Context, Group, cells};

pub const GROUP: Group = Group {
    options: || Options {
        login_shells: true,
        cpus: 16,
        ..Options::default()
    },
    ..Group::new(
        "shapes",
        cells![
            two_jobs_have_a_daemon_and_a_gpu_each,
            a_cancelled_job_leaves_nothing,
            a_batch_job_without_environment_has_its_mps,
            steps_at_once_share_their_jobs_daemons,
            steps_that_ask_at_once_have_a_daemon_each,
            a_killed_slurmstepd_leaves_nothing,
            the_ranks_of_mpirun_in_a_script_have_their_own_by_exec_and_else_their_user_is_told,
            the_scripts_of_the_pages_give_each_task_its_share,
        ],
    )
};

/// The scripts of a page of docs/.
fn scripts(page: &'static str) -> impl Iterator<Item = &'static str> {
    let blocks = page.split("```bash\n").skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap_or_default())
}

/// Those of the recipes and of the quick start, with a client for the program.
/// (50 % of 132 multiprocessors are 66, 25 % are 32: recorded.)
fn the_scripts_of_the_pages_give_each_task_its_share(cell: &Context) -> Result<()> {
    let solver = cell.bed.home(&cell.user).join("solver");
    std::fs::write(
        &solver,
        format!("#!/bin/sh\n{}\n", cell.client("--hold 0.5")),
    )?;
    std::fs::set_permissions(&solver, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let recipes = scripts(include_str!("../../docs/recipes.md"));
    let recipes = recipes.map(|script| script.replace("gmx_mpi", "./solver gmx_mpi"));
    let page = include_str!("../../docs/quick-start.md");
    let (_, page) = page
        .split_once("\n## Batch scripts\n")
        .context("no heading")?;
    let batch = page.split("\n## ").next().unwrap_or_default();
    let own = scripts(batch).map(str::to_owned);
    let all: Vec<String> = recipes.chain(own).collect();
    let shares = [(4, 1, 66), (8, 2, 66), (8, 1, 32)];
    ensure!(all.len() == shares.len(), "{all:?}");
    for (script, (tasks, nodes, sms)) in all.iter().zip(shares) {
        let (_, output) = cell.batch("--time=5", script)?;
        let records = records(&output)?;
        check_daemons(&records, cell.user.uid, 1)?;
        let on: BTreeSet<_> = records.iter().map(|record| &record.node).collect();
        let right = records.iter().all(|record| record.sms == Some(sms));
        holds(
            right && (records.len(), on.len()) == (tasks, nodes),
            &records,
        )?;
        cell.idle()?;
    }
    Ok(())
}

/// Two jobs of two users, and two of one user.
fn two_jobs_have_a_daemon_and_a_gpu_each(cell: &Context) -> Result<()> {
    let line = cell.client("--hold 1.5");
    for users in [[&cell.user, &cell.other], [&cell.user, &cell.user]] {
        let jobs = users
            .map(|user| cell.start_as(user, "srun --mps -w node1 -n2 --gres=gpu:1", &line, &[]));
        let (mut daemons, mut all) = (BTreeSet::new(), BTreeSet::new());
        for (job, user) in jobs.into_iter().zip(users) {
            let records = ended(job?)?;
            holds(records.len() == 2, &records)?;
            check_daemons(&records, user.uid, 1)?;
            daemons.extend(records.iter().map(|record| record.daemon_pid));
            all.extend(gpus(&records));
        }
        holds(daemons.len() == 2 && all.len() == 2, &(daemons, all))?;
        cell.idle()?;
    }
    Ok(())
}

fn check_different_daemons(cell: &Context, records: &[Record]) -> Result<()> {
    let [first, second] = records else {
        bail!("two clients expected: {records:?}")
    };
    for record in records {
        check_daemons(std::slice::from_ref(record), cell.user.uid, 1)?;
    }
    holds(first.daemon_pid != second.daemon_pid, &records)
}

/// Canceled while it runs, with a client that ignores SIGTERM.
fn a_cancelled_job_leaves_nothing(cell: &Context) -> Result<()> {
    let line = cell.client("--hold 60 --ignore-term");
    let job = cell.submit("--mps --gres=gpu:1", &line)?;
    cell.wait("the client", || Ok(cell.output(job).ends_with("}\n")))?;
    cell.run(&format!("scancel {job}"), "")?.success()?;
    cell.bed.wait_job(job, &["CANCELLED"], LIMIT).map(drop)
}

/// With `--export=NONE` the batch step does not get the option.
fn a_batch_job_without_environment_has_its_mps(cell: &Context) -> Result<()> {
    let line = cell.client("--hold 0.1");
    // That option also removes the variable with this cluster's place.
    let conf = format!(
        "export SLURM_CONF={}/etc/slurm.conf",
        cell.bed.dir().display()
    );
    let script = format!("{conf}\n({line})\nsrun /bin/sh -c '{line}'");
    let (_, said) = cell.batch("--mps --export=NONE --gres=gpu:1", &script)?;
    let records = records(&said)?;
    ensure!(records.len() == 2, "script and step: {records:?}");
    check_daemons(&records, cell.user.uid, 1)
}

/// Two steps at once in an allocation, each with a client in each task. Returns their records.
fn two_steps(cell: &Context, job: &str, step: &str, hold: &str) -> Result<Vec<Record>> {
    let step = format!("srun {step} /bin/sh -c '{}'", cell.client(hold));
    let shell = format!("{step} & first=$!; {step} & wait $! && wait $first");
    cell.records(&format!("salloc {job}"), &shell)
}

/// Overlapping steps have both GPUs of a node; the others have one of each node.
fn steps_at_once_share_their_jobs_daemons(cell: &Context) -> Result<()> {
    let (both, exact) = ("--overlap -n2 --gres=gpu:2", "--exact -N2 -n2 --gres=gpu:1");
    for (job, step, own, all, daemons) in [
        ("--mps -N1 -n2", both, 2, 2, 1),
        ("--mps -N2 --ntasks-per-node=2", exact, 1, 4, 1),
        ("--mps=per-gpu -N2 --ntasks-per-node=2", exact, 1, 4, 2),
    ] {
        let records = two_steps(cell, &format!("{job} --gres=gpu:2"), step, "--hold 0.4")?;
        let right = records.len() == 4 && records.iter().all(|record| record.uuids.len() == own);
        holds(right && gpus(&records).len() == all, &records)?;
        check_daemons(&records, cell.user.uid, daemons)?;
    }
    Ok(())
}

/// Their job did not ask.
fn steps_that_ask_at_once_have_a_daemon_each(cell: &Context) -> Result<()> {
    let step = "--mps --exact -n1 --gres=gpu:1";
    let records = two_steps(cell, "-N1 -n2 --gres=gpu:2", step, "--hold 1")?;
    check_different_daemons(cell, &records)
}

/// Nothing calls the step's exit callback, so the job's epilog ends the step's own daemon.
fn a_killed_slurmstepd_leaves_nothing(cell: &Context) -> Result<()> {
    let line = cell.client("--hold 3");
    let job = cell.start("salloc -N1 --gres=gpu:1 srun --mps", &line)?;
    let nodes = &cell.nodes.nodes;
    let contexts = || nodes.iter().flat_map(|node| node.contexts());
    let clients = || {
        contexts()
            .filter(|(_, context)| context.kind == "mps")
            .count()
    };
    cell.wait("the step's client", || Ok(clients() == 1))?;
    let mut stepds = cell.bed.job_processes();
    stepds.retain(|process| {
        let name = process.args.first();
        name.is_some_and(|name| name.starts_with("slurmstepd: [") && !name.contains("extern"))
    });
    let [stepd] = &stepds[..] else {
        bail!("one slurmstepd expected: {stepds:?}")
    };
    send(stepd.pid, Signal::SIGKILL)?;
    // Slurm does not notice that slurmstepd is gone, so the test cancels the job. `scancel --user`
    // gets the uid, because Slurm 26.05 does not know the name 'nobody'.
    cell.root(&format!("scancel --user {}", cell.user.uid))?;
    job.wait(LIMIT)?;
    cell.wait("the daemon's end", || {
        Ok(nodes.iter().all(|node| node.daemons().is_empty()))
    })
}

/// The ranks' launcher sets the variables of Open MPI's mpirun.
fn the_ranks_of_mpirun_in_a_script_have_their_own_by_exec_and_else_their_user_is_told(
    cell: &Context,
) -> Result<()> {
    let launcher = "mpirun() { for rank in 0 1; do OMPI_COMM_WORLD_LOCAL_RANK=$rank OMPI_COMM_WORLD_LOCAL_SIZE=2 \"$@\" & \
                    done; wait; }\n";
    let client = cell.client("--hold 0.2");
    let exec = format!("{} exec -- /bin/sh -c '{client}'", cell.mpsctl());
    let words = "--mps=per-gpu --mps-threads=20:40 -N1 -n2 --gres=gpu:2";
    let warning =
        "its script names mpirun: the limits by local rank would be that of the first rank";
    let (_, said) = cell.batch(words, &format!("{launcher}mpirun {exec}\n"))?;
    let found = records(&said)?;
    let of = |value: fn(&Record) -> String| found.iter().map(value).collect::<BTreeSet<_>>().len();
    let spread = [
        of(|record| format!("{:?}", record.uuids)),
        of(|record| format!("{:?}", record.sms)),
    ];
    holds(spread == [2, 2] && found.len() == 2, &found)?;
    let (_, said) = cell.batch(words, &format!("{launcher}mpirun /bin/sh -c '{client}'\n"))?;
    says(&said, &[warning, "mpirun -n N mpsctl exec -- PROGRAM"])?;
    // The script's own number is no rank.
    let (_, said) = cell.batch(words, &format!("{exec} || true\n"))?;
    says(&said, &["this process has no local rank"])
}
