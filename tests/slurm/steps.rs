//! Steps unlike their job: with other limits, without its GPUs, after its daemon's end.

use anyhow::{Result, ensure};
use tests::slurm::{Options, Record};

use crate::jobs::{ONE_GPU, check_bare, check_daemons, holds, records};
use crate::runner::{Context, Group, cells};
use crate::sites::older_than;

pub const GROUP: Group = Group::new(
    "steps",
    cells![
        a_step_without_gpus_has_nothing,
        a_submission_in_a_job_inherits_nothing,
        a_step_after_its_control_daemons_end_does_not_run,
        a_step_beside_a_control_daemon_that_has_ended_runs,
    ],
);

/// Steps that srun only submits (`--async`): the job's own stepmgr starts them.
pub const ASYNC: Group = Group {
    options: || Options {
        slurm_lines: vec!["SlurmctldParameters=enable_stepmgr".into()],
        ..Options::default()
    },
    needs: || older_than(26, 5, "srun --async"),
    ..Group::new(
        "async",
        cells![a_submitted_step_has_what_it_or_its_job_asked_for],
    )
};

fn a_submitted_step_has_what_it_or_its_job_asked_for(cell: &Context) -> Result<()> {
    let client = cell.client("--hold 0.1");
    let wait = "for i in $(seq 300); do grep -qs ended step.out && break; sleep 0.1; done";
    // 50 % of 132 multiprocessors are 66, 10 % are 12 (recorded).
    for (job, step, sms) in [
        ("--mps --mps-threads=50", "", Some(66)),
        ("--mps --mps-threads=50", "--mps-threads=10", Some(12)),
        ("", "--mps --mps-threads=50", Some(66)),
        ("", "", None),
    ] {
        let script = format!(
            "srun {step} --async -n1 --output=step.out /bin/sh -c '({client}); echo ended' || exit 1\n\
             {wait}; cat step.out; rm step.out"
        );
        let (_, said) = cell.batch(&format!("{job} -n1 --gres=gpu:1"), &script)?;
        let clients = records(&said)?;
        match sms {
            Some(_) => check_daemons(&clients, cell.user.uid, 1)?,
            None => check_bare(&clients)?,
        }
        let right = |record: &Record| sms.is_none() || record.sms == sms;
        let right = clients.len() == 1 && clients.iter().all(right);
        ensure!(right, "'{job}', '{step}': {clients:?}");
    }
    Ok(())
}

/// The step would inherit the script's variables.
fn a_step_without_gpus_has_nothing(cell: &Context) -> Result<()> {
    let look = "env | grep -E \"^CUDA|^MPSD\"; echo looked";
    let script = format!("srun --gres=none /bin/sh -c '{look}'; srun --gpus=0 /bin/sh -c '{look}'");
    let (_, said) = cell.batch("--mps --mps-report=off --gres=gpu:1", &script)?;
    // The second step needs what the first had, and may be told that Slurm has not taken it back
    // yet.
    let waits =
        |line: &&str| line.starts_with("srun: Job ") || line.starts_with("srun: Step created ");
    let others: Vec<&str> = said.lines().filter(|line| !waits(line)).collect();
    ensure!(others == ["looked"; 2], "{said}");
    // The job has all GPUs of its node.
    let done = cell.run("srun --exclusive --mps", look)?.success()?;
    let is_told = done.stderr.contains("so it runs without MPS");
    holds(done.stdout == "looked\n" && is_told, &done)
}

/// Every way to submit from a script: the new job does not ask for MPS. The script's steps have it.
fn a_submission_in_a_job_inherits_nothing(cell: &Context) -> Result<()> {
    let home = cell.bed.home(&cell.user);
    let (next, out) = (home.join("next.sh"), home.join("next.out"));
    let variables = "CUDA_MPS|MPSD|SLURM_SPANK|_SLURM_SPANK|SLURM_MPSD|BASH_ENV";
    let client = cell.client("--hold 0.1");
    let line = format!("env | grep -E '^({variables})'; {client}");
    std::fs::write(&next, format!("#!/bin/sh\n{line}\n"))?;
    std::fs::set_permissions(&next, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let (next, out) = (next.display(), out.display());
    let shape = "-w node2 --gres=gpu:1";
    let wait = format!("sbatch --quiet --wait {shape} --output={out}");
    // Such a job gets the same with NIL as with NONE; for NONE, 25.05 and later need a login shell.
    let inner = [
        format!("{wait} {next}; cat {out}; rm {out}"),
        format!("{wait} --export=NIL {next}; cat {out}; rm {out}"),
        format!("salloc --quiet {shape} srun {next}"),
        format!("env -u SLURM_JOB_ID -u SLURM_JOBID srun --quiet {shape} {next}"),
    ];
    let script = format!("{}\necho own; srun {next}", inner.join("\n"));
    let (_, said) = cell.batch(&format!("{ONE_GPU} --mps-threads=50"), &script)?;
    let (others, own) = said.split_once("own\n").unwrap_or((&said, ""));
    let found = records(others)?;
    let bare = |record: &Record| !record.under_mps && record.node == "node2";
    let bare = found.iter().all(bare);
    ensure!(bare && found.len() == inner.len(), "{said}");
    for name in variables.split('|') {
        ensure!(!others.contains(&format!("{name}_")), "{name}: {said}");
    }
    let own = records(own)?;
    check_daemons(&own, cell.user.uid, 1)?;
    ensure!(own[0].sms == Some(66), "half of it: {own:?}");
    Ok(())
}

/// As its user, ends the control daemon of the surrounding job, and waits until its socket does not
/// answer.
const END_DAEMON: &str =
    "kill -9 $(cat $CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid); sleep 1";

/// Exactly one step, or task, of these did not run; none ran outside its job's MPS.
fn check_not_outside(said: &str) -> Result<()> {
    let told = said.matches("control daemon: it has ended").count();
    ensure!(told == 1, "told {told} times: {said}");
    let records = records(said)?;
    holds(records.iter().all(|record| record.under_mps), &records)
}

fn a_step_after_its_control_daemons_end_does_not_run(cell: &Context) -> Result<()> {
    let client = cell.client("--hold 0.1");
    let step = format!("srun -n2 --overcommit /bin/sh -c '{client}'");
    let script = format!("{step} || echo first $?\n{END_DAEMON}\n{step} && echo silent\nexit 0");
    let (_, said) = cell.batch(ONE_GPU, &script)?;
    let wrong = ["first ", "silent"].iter().any(|word| said.contains(word));
    ensure!(!wrong, "{said}");
    check_not_outside(&said)?;
    // A script that starts its program itself is told, even if it ends well.
    let (_, said) = cell.batch(ONE_GPU, &format!("{END_DAEMON}\necho on"))?;
    let told = said.matches("its mpsd says: control daemon ").count();
    ensure!(told == 1, "told {told} times: {said}");
    Ok(())
}

/// The job has a control daemon for each GPU, and one has ended: only that GPU's task does not run.
fn a_step_beside_a_control_daemon_that_has_ended_runs(cell: &Context) -> Result<()> {
    let srun = "srun -n2 --kill-on-bad-exit=0 /bin/sh -c";
    let end = format!("[ $SLURM_LOCALID = 0 ] || {{ {END_DAEMON}; }}");
    let client = cell.client("--hold 0.1");
    let script = format!("{srun} '{end}'\n{srun} '{client}' && echo silent");
    let done = cell.run("salloc --mps=per-gpu -w node1 -n2 --gres=gpu:2", &script)?;
    ensure!(!done.stdout.contains("silent"), "{done:?}");
    check_not_outside(&done.said())?;
    holds(records(&done.stdout)?.len() == 1, &done)
}
