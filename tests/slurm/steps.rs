//! Steps that are not like their job: with other limits, without its GPUs, or killed for taking too much memory.

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::slurm::{Finished, Options};

use crate::mps::{LIMIT, check_daemons, clients, nodes, records, simulated, start};
use crate::runner::{Cell, Context, Group};
use crate::sites::no_cgroups;

/// One bed for all of them.
pub const GROUP: Group = Group {
    name: "steps",
    options: Options::default,
    prepare: simulated,
    needs: || None,
    cells: &[
        ("a_step_lowers_its_jobs_limits", a_step_lowers_its_jobs_limits),
        ("a_step_cannot_raise_them", a_step_cannot_raise_them),
        (
            "components_with_limits_of_their_own",
            components_with_limits_of_their_own,
        ),
        ("a_component_that_did_not_ask", a_component_that_did_not_ask),
        ("a_step_without_gpus", a_step_without_gpus),
        (
            "a_submission_in_a_job_inherits_nothing",
            a_submission_in_a_job_inherits_nothing,
        ),
        (
            "a_step_after_its_control_daemons_end",
            a_step_after_its_control_daemons_end,
        ),
        (
            "a_step_beside_a_control_daemon_that_has_ended",
            a_step_beside_a_control_daemon_that_has_ended,
        ),
    ],
};

/// Steps that take more memory than they asked for. Slurm itself looks and kills, so that no cgroup is needed.
pub const MEMORY: Group = Group {
    name: "memory",
    options: || Options {
        slurm_lines: vec![
            "JobAcctGatherType=jobacct_gather/linux".into(),
            "JobAcctGatherFrequency=task=1".into(),
            "JobAcctGatherParams=OverMemoryKill".into(),
            "SelectTypeParameters=CR_Core_Memory".into(),
        ],
        ..Options::default()
    },
    prepare: simulated,
    needs: || None,
    cells: KILLED,
};

/// The same where the kernel kills: memory cgroups of the first kind.
pub const MEMORY_CGROUP: Group = Group {
    name: "memory_cgroup",
    options: || Options {
        slurm_lines: vec![
            "ProctrackType=proctrack/cgroup".into(),
            "TaskPlugin=task/cgroup".into(),
            "SelectTypeParameters=CR_Core_Memory".into(),
        ],
        cgroup_lines: vec![
            "CgroupAutomount=no".into(),
            "CgroupMountpoint=/sys/fs/cgroup".into(),
            "CgroupPlugin=cgroup/v1".into(),
            "ConstrainRAMSpace=yes".into(),
        ],
        ..Options::default()
    },
    prepare: simulated,
    needs: || no_cgroups(&["memory", "freezer"]),
    cells: KILLED,
};

const KILLED: &[Cell] = &[
    ("a_job_killed_for_memory", a_job_killed_for_memory),
    ("a_step_killed_for_memory", a_step_killed_for_memory),
];

/// `salloc JOB srun STEP client`.
fn step_in(cell: &Context, job: &[&str], step: &[&str]) -> Result<Finished> {
    let line = nodes(cell)?.client("--hold 0.1");
    start(
        cell,
        &cell.user,
        &[&["salloc"], job, &["srun"], step].concat(),
        &line,
    )?
    .wait(LIMIT)
}

const JOB: [&str; 5] = ["--mps", "--mps-threads=50", "--mps-mem=4G", "-n2", "--gres=gpu:1"];

fn a_step_lowers_its_jobs_limits(cell: &Context) -> Result<()> {
    // 50 % of 132 multiprocessors are 66, 25 % are 32, 10 % are 12 (recorded).
    let cases: [(&[&str], [u64; 2], u64); 4] = [
        (&[], [66, 66], 4096),
        (&["--mps", "--mps-threads=50"], [66, 66], 4096),
        (&["--mps-threads=25", "--mps-mem=2G"], [32, 32], 2048),
        (&["--mps-threads=10:50"], [12, 66], 4096),
    ];
    for (step, sms, memory) in cases {
        let done = step_in(cell, &JOB, step)?.success()?;
        let mut records = records(&done.stdout, &done.stderr)?;
        records.sort_by_key(|record| record.local_rank);
        check_daemons(&records, cell.user.uid, 1)?;
        let got: Vec<_> = records.iter().map(|record| record.sms).collect();
        ensure!(got == sms.map(Some), "{step:?}: {sms:?} expected: {records:?}");
        ensure!(
            records
                .iter()
                .all(|record| record.memory_limit_mib == Some(memory)),
            "{step:?}: {memory} MiB expected: {records:?}"
        );
    }
    Ok(())
}

fn a_step_cannot_raise_them(cell: &Context) -> Result<()> {
    for flag in [
        "--mps-threads=80",
        "--mps-mem=5G",
        "--mps=per-gpu",
        "--mps-priority=below-normal",
    ] {
        let done = step_in(cell, &JOB, &[flag])?.exits(1)?;
        ensure!(done.stdout.is_empty(), "{flag}: the step ran: {}", done.stdout);
        let ours: Vec<_> = done
            .stderr
            .lines()
            .filter(|line| line.contains("mps: "))
            .collect();
        ensure!(
            !ours.is_empty()
                && ours
                    .iter()
                    .all(|line| line.contains(flag) && line.contains("allowed: ")),
            "{flag}: not said in one line: {}",
            done.stderr
        );
    }
    Ok(())
}

/// Each component of a het job has its own limits, and its step the same, whatever srun makes of the flags.
fn components_with_limits_of_their_own(cell: &Context) -> Result<()> {
    components(cell, "--mps-threads=50", "--mps-threads=25")?;
    components(cell, "--mps-threads=25", "--mps-threads=50")
}

fn components(cell: &Context, first: &str, second: &str) -> Result<()> {
    let part = |threads| ["--mps", threads, "-N1", "-n1", "--gres=gpu:1"];
    let records = clients(
        cell,
        &[&part(first)[..], &[":"], &part(second)].concat(),
        "--hold 0.2",
    )?;
    check_daemons(&records, cell.user.uid, 1)?;
    let mut sms: Vec<_> = records.iter().map(|record| record.sms).collect();
    sms.sort_unstable();
    ensure!(sms == [Some(32), Some(66)], "25 and 50 %: {records:?}");
    Ok(())
}

/// The script of a het job hands the flags of its own component, the first, to its sruns on the others.
fn a_component_that_did_not_ask(cell: &Context) -> Result<()> {
    let flags = [
        "--mps",
        "-N1",
        "--gres=gpu:1",
        ":",
        "--mps=off",
        "-N1",
        "--gres=gpu:1",
    ];
    // Directories of the script's MPS are not looked for: the nodes of this bed have a run_dir each.
    let look = "env | grep ^MPSD; echo looked";
    let job = cell.bed.sbatch(
        &cell.user,
        &flags,
        &format!("srun --het-group=1 -n1 /bin/sh -c '{look}'"),
    )?;
    cell.bed.wait_job(job, &["COMPLETED"], LIMIT)?;
    let said = cell.bed.output(&cell.user, job);
    ensure!(said == "looked\n", "it runs as it would without us: {said}");
    Ok(())
}

/// Under sbatch the step would inherit the script's variables; under salloc there are none.
fn a_step_without_gpus(cell: &Context) -> Result<()> {
    let look = "env | grep -E \"^CUDA|^MPSD\"; echo looked";
    let script = format!("srun --gres=none /bin/sh -c '{look}'; srun --gpus=0 /bin/sh -c '{look}'");
    let job = cell.bed.sbatch(&cell.user, &["--mps", "--gres=gpu:1"], &script)?;
    cell.bed.wait_job(job, &["COMPLETED"], LIMIT)?;
    let said = cell.bed.output(&cell.user, job);
    // The second step asks for what the first one had, and may be told that Slurm has not taken it back yet.
    let waits = |line: &&str| line.starts_with("srun: Job ") || line.starts_with("srun: Step created ");
    let others: Vec<&str> = said.lines().filter(|line| !waits(line)).collect();
    ensure!(
        others == ["looked"; 2],
        "a step without GPUs was given some: {said}"
    );
    let command = ["salloc", "--mps", "--gres=gpu:1", "srun", "--gres=none"];
    let done = start(cell, &cell.user, &command, look)?.wait(LIMIT)?.success()?;
    ensure!(
        done.stdout == "looked\n",
        "a step without GPUs was given some: {}",
        done.stdout
    );
    Ok(())
}

/// Each way to submit from a script, an allocation's shell and a step's: the new job is as one that nobody asked MPS for. The steps
/// of the job itself have it.
fn a_submission_in_a_job_inherits_nothing(cell: &Context) -> Result<()> {
    let home = cell.bed.home(&cell.user);
    let next = home.join("next.sh");
    // The job gets the same as with NONE, for which 26.05 wants a login shell that the bed's users have not.
    let nothing = "--export=NIL";
    let line = format!(
        "env | grep -E '^(CUDA_MPS|MPSD|SLURM_SPANK|_SLURM_SPANK|SLURM_MPSD|BASH_ENV)'; {}",
        nodes(cell)?.client("--hold 0.1")
    );
    std::fs::write(&next, format!("#!/bin/sh\n{line}\n"))?;
    std::fs::set_permissions(&next, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let (out, next) = (home.join("next.out"), next.display());
    let wait = format!(
        "sbatch --quiet --wait -w node2 --gres=gpu:1 --output={}",
        out.display()
    );
    let alone = "env -u SLURM_JOB_ID -u SLURM_JOBID";
    let inner = [
        format!("{wait} {next}; cat {0}; rm {0}", out.display()),
        format!("{wait} {nothing} {next}; cat {0}; rm {0}", out.display()),
        format!("salloc --quiet -w node2 --gres=gpu:1 srun {next}"),
        format!("{alone} srun --quiet -w node2 --gres=gpu:1 {next}"),
    ];
    let outer: [&[&str]; 3] = [&[], &["salloc"], &["srun"]];
    for outer in outer {
        let script = inner.join("\n");
        let own = match outer {
            ["srun"] => String::new(),
            _ => format!("echo own; srun {next}"),
        };
        let script = format!("{script}\n{own}");
        let flags = ["--mps", "--mps-threads=50", "-w", "node1", "--gres=gpu:1"];
        let said = if let [command] = outer {
            let done = start(cell, &cell.user, &[&[*command], &flags[..]].concat(), &script)?;
            let done = done.wait(LIMIT)?.success()?;
            format!("{}{}", done.stdout, done.stderr)
        } else {
            let job = cell.bed.sbatch(&cell.user, &flags, &script)?;
            cell.bed.wait_job(job, &["COMPLETED"], LIMIT)?;
            cell.bed.output(&cell.user, job)
        };
        let (others, own) = said.split_once("own\n").unwrap_or((&said, ""));
        let others_are = records(others, "")?;
        ensure!(others_are.len() == inner.len(), "{outer:?}: one each: {said}");
        ensure!(
            others_are
                .iter()
                .all(|record| !record.under_mps && record.node == "node2"),
            "{outer:?}: a job that did not ask has MPS: {said}"
        );
        for name in ["CUDA_MPS", "MPSD", "SLURM_SPANK", "SLURM_MPSD", "BASH_ENV"] {
            ensure!(!others.contains(&format!("{name}_")), "{outer:?}: {name}: {said}");
        }
        if outer != ["srun"] {
            let own = records(own, "")?;
            check_daemons(&own, cell.user.uid, 1)?;
            ensure!(own[0].sms == Some(66), "{outer:?}: half of it: {own:?}");
        }
    }
    Ok(())
}

/// Ends the control daemon of the job around it as its user, and waits until its socket is deaf.
const END_DAEMON: &str = "kill -9 $(cat $CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid); sleep 1";

/// The words of a step, or a task, that did not run outside its job's MPS.
fn check_not_outside(said: &str, tasks: usize) -> Result<()> {
    ensure!(
        said.matches("control daemon: it has ended").count() == tasks,
        "not told {tasks} times: {said}"
    );
    ensure!(
        records(said, "").is_ok_and(|all| all.iter().all(|record| record.under_mps)),
        "a task ran outside its job's MPS: {said}"
    );
    Ok(())
}

fn a_step_after_its_control_daemons_end(cell: &Context) -> Result<()> {
    let client = nodes(cell)?.client("--hold 0.1");
    let step = format!("srun -n2 --overcommit /bin/sh -c '{client}'");
    let flags = ["--mps", "-w", "node1", "--gres=gpu:1"];
    let script = format!("{step} || echo first $?\n{END_DAEMON}\n{step} && echo silent\nexit 0");
    let job = cell.bed.sbatch(&cell.user, &flags, &script)?;
    cell.bed.wait_job(job, &["COMPLETED"], LIMIT)?;
    let said = cell.bed.output(&cell.user, job);
    ensure!(!said.contains("first ") && !said.contains("silent"), "{said}");
    check_not_outside(&said, 1)?;
    // A shell's step in the same state, and what the vendor's own word for an end does.
    let control = nodes(cell)?.node("node1")?.control();
    let shell = format!(
        "srun -n1 /bin/sh -c '{client}'\nsrun -n1 /bin/sh -c 'echo quit | {}; sleep 1'\nsrun -n1 /bin/sh -c '{client}'",
        control.display()
    );
    let done = start(cell, &cell.user, &[&["salloc"], &flags[..]].concat(), &shell)?.wait(LIMIT)?;
    ensure!(!done.status.success(), "the step ran: {done:?}");
    check_not_outside(&format!("{}{}", done.stdout, done.stderr), 1)?;
    // A script that starts its program itself, and ends well, is told.
    let script = format!("{END_DAEMON}\necho on");
    let job = cell.bed.sbatch(&cell.user, &flags, &script)?;
    cell.bed.wait_job(job, &["COMPLETED"], LIMIT)?;
    let said = cell.bed.output(&cell.user, job);
    ensure!(
        said.matches("its mpsd says: control daemon ").count() == 1,
        "not told once: {said}"
    );
    Ok(())
}

/// Of a job with a control daemon for each GPU one has ended: its task alone does not run.
fn a_step_beside_a_control_daemon_that_has_ended(cell: &Context) -> Result<()> {
    let client = nodes(cell)?.client("--hold 0.1");
    let end = format!("[ $SLURM_LOCALID = 0 ] || {{ {END_DAEMON}; }}");
    let flags = ["--mps=per-gpu", "-w", "node1", "-n2", "--gres=gpu:2"];
    let script = format!(
        "srun -n2 --kill-on-bad-exit=0 /bin/sh -c '{end}'\nsrun -n2 --kill-on-bad-exit=0 /bin/sh -c '{client}' && echo silent"
    );
    let done = start(cell, &cell.user, &[&["salloc"], &flags[..]].concat(), &script)?.wait(LIMIT)?;
    let said = format!("{}{}", done.stdout, done.stderr);
    ensure!(!said.contains("silent"), "{said}");
    check_not_outside(&said, 1)?;
    ensure!(
        records(&done.stdout, "")?.len() == 1,
        "the other task runs: {said}"
    );
    Ok(())
}

/// What Slurm says of a task that took too much, itself or with the kernel.
fn tells_of_memory(said: &str) -> bool {
    said.contains("exceeded memory limit") || said.contains("oom-kill event")
}

/// Starts a client of the job's MPS, and when that has written its record a program that keeps 400 MiB in memory, until its
/// reader has read it all or it is killed.
fn glutton(cell: &Context) -> Result<String> {
    let client = nodes(cell)?.client("--hold 20");
    Ok(format!(
        "r=$(mktemp); ({client}) >$r & i=0; until [ -s $r ] || [ $i -gt 150 ]; do sleep 0.1; i=$((i+1)); done; \
         cat $r; rm $r; head -c 400M /dev/zero | tail | (read -r all && echo survived); exit 9"
    ))
}

fn check_killed(done: &Finished) -> Result<()> {
    ensure!(!done.status.success(), "'{}' succeeded", done.command);
    ensure!(
        tells_of_memory(&done.stderr) && !done.stdout.contains("survived"),
        "not killed for its memory: {}{}",
        done.stdout,
        done.stderr
    );
    check_client(done)
}

fn check_client(done: &Finished) -> Result<()> {
    let records = records(&done.stdout, &done.stderr)?;
    ensure!(records.iter().all(|record| record.under_mps), "{records:?}");
    Ok(())
}

fn a_job_killed_for_memory(cell: &Context) -> Result<()> {
    let line = glutton(cell)?;
    let command = ["srun", "--mps", "--mem=60M", "--gres=gpu:1"];
    check_killed(&start(cell, &cell.user, &command, &line)?.wait(LIMIT)?)
}

/// The step's own daemon goes with it, while the allocation stays and its next step runs.
fn a_step_killed_for_memory(cell: &Context) -> Result<()> {
    let line = glutton(cell)?;
    let simulated = nodes(cell)?;
    let mark = cell.bed.home(&cell.user).join("go-on");
    let shell = format!(
        "srun --mps --mem=60M --gres=gpu:1 /bin/sh -c '{line}'; until [ -e {mark} ]; do sleep 0.1; done; srun /bin/echo next",
        mark = mark.display()
    );
    let job = start(
        cell,
        &cell.user,
        &["salloc", "-N1", "--mem=500M", "--gres=gpu:1"],
        &shell,
    )?;
    let daemons = || {
        simulated
            .nodes
            .iter()
            .map(|node| node.daemons().len())
            .sum::<usize>()
    };
    cell.bed
        .wait_until("the step's daemon", LIMIT, || Ok(daemons() > 0))?;
    let gone = cell.bed.wait_until(
        "the daemon's end under a living job",
        Duration::from_secs(20),
        || Ok(daemons() == 0),
    );
    std::fs::write(&mark, "")?;
    let done = job.wait(LIMIT);
    std::fs::remove_file(&mark)?;
    let done = done?.success()?;
    gone?;
    ensure!(
        tells_of_memory(&done.stderr) && done.stdout.ends_with("next\n"),
        "{}{}",
        done.stdout,
        done.stderr
    );
    check_client(&done)
}
