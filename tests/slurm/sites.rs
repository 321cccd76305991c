//! Sites that are set up differently: automatic requests, shared GPUs, private /tmp, cgroups.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, ensure};
use tests::slurm::{Gpus, Options, Simulated};

use crate::mps::{LIMIT, check_daemons, clients, ended, nodes, simulated, start};
use crate::runner::{Context, Group};
use crate::shapes::two_steps_with_mps;

/// Jobs that get a daemon because the site says so, and the prolog that waits.
pub const AUTOMATIC: Group = Group {
    name: "automatic",
    options: || Options {
        gres_types: vec!["mps".into()],
        gres_count: 200,
        node_words: Some("Feature=mps,big".into()),
        partition_lines: vec!["PartitionName=shared Nodes=ALL State=UP".into()],
        ..Options::default()
    },
    prepare: |bed| {
        let extra = "[slurm]\nwait = \"prolog\"\nauto_gres = true\nauto_constraint = \"mps\"\nauto_partitions = [\"shared\"]\n";
        Simulated::install(bed, extra, |node| node).map(Some)
    },
    needs: || None,
    cells: &[
        ("by_constraint", by_constraint),
        ("by_partition", by_partition),
        ("by_gres", by_gres),
        ("the_user_may_say_no", the_user_may_say_no),
    ],
};

/// `gres/shard`: two jobs on one GPU.
pub const SHARED: Group = Group {
    name: "shard",
    options: || Options {
        gpus: Gpus::Simulated(1),
        gres_types: vec!["shard".into()],
        gres_count: 8,
        ..Options::default()
    },
    prepare: simulated,
    needs: || None,
    cells: &[("two_jobs_on_one_gpu", two_jobs_on_one_gpu)],
};

/// `GresTypes` without `gpu`: the nodes' GPUs are nobody's.
pub const NO_GPUS: Group = Group {
    name: "no_gpus",
    options: || Options {
        slurm_lines: vec!["GresTypes=disk".into()],
        gres: Some("disk:2".into()),
        gres_conf: Some("Name=disk Count=2\n".into()),
        ..Options::default()
    },
    prepare: simulated,
    needs: || None,
    cells: &[("every_request_is_refused", every_request_is_refused)],
};

/// Slurm's default: the prolog runs at a node's first step, whose options are in its environment.
pub const NO_FLAGS: Group = Group {
    name: "no_flags",
    options: || Options {
        prolog_flags: String::new(),
        ..Options::default()
    },
    prepare: simulated,
    needs: || None,
    cells: &[("the_first_step_is_not_the_job", the_first_step_is_not_the_job)],
};

/// `job_container/tmpfs`: a private /tmp and /dev/shm for each job.
pub const CONTAINER: Group = Group {
    name: "job_container",
    options: || Options {
        slurm_lines: vec!["JobContainerType=job_container/tmpfs".into()],
        ..Options::default()
    },
    prepare: |bed| {
        let base = bed.dir().join("containers").display().to_string();
        bed.options_mut().job_container_lines = vec!["AutoBasePath=true".into(), format!("BasePath={base}")];
        simulated(bed)
    },
    needs: || None,
    cells: &[
        ("srun_with_a_private_tmp", srun_with_a_private_tmp),
        ("a_steps_own_daemon_is_seen", a_steps_own_daemon_is_seen),
    ],
};

/// cgroups of the first kind with `ConstrainDevices`: a task's devices are numbered anew.
pub const CGROUP: Group = Group {
    name: "constrain_devices",
    options: || Options {
        slurm_lines: vec![
            "ProctrackType=proctrack/cgroup".into(),
            "TaskPlugin=task/cgroup".into(),
        ],
        cgroup_lines: vec![
            "CgroupAutomount=no".into(),
            "CgroupMountpoint=/sys/fs/cgroup".into(),
            "CgroupPlugin=cgroup/v1".into(),
            "ConstrainDevices=yes".into(),
        ],
        ..Options::default()
    },
    prepare: simulated,
    needs: || no_cgroups(&["devices", "freezer"]),
    cells: &[
        ("the_second_gpu_is_the_second", the_second_gpu_is_the_second),
        ("a_steps_own_daemon_has_its_gpu", a_steps_own_daemon_has_its_gpu),
    ],
};

/// Why this machine cannot run what needs these controllers of cgroup v1.
pub fn no_cgroups(names: &[&str]) -> Option<String> {
    let there = |name: &&str| Path::new("/sys/fs/cgroup").join(name).is_dir();
    let missing: Vec<&str> = names.iter().filter(|name| !there(name)).copied().collect();
    let list = missing.join("' and '");
    (!missing.is_empty()).then(|| format!("this machine has no cgroup v1 controller '{list}'"))
}

fn one_client(cell: &Context, arguments: &[&str]) -> Result<bool> {
    let records = clients(cell, arguments, "--hold 0.1")?;
    let [record] = &records[..] else {
        anyhow::bail!("one client expected: {records:?}")
    };
    ensure!(record.error.is_none(), "{record:?}");
    Ok(record.under_mps)
}

/// The job does not ask and its first step does: the next step is as its job, and another may ask otherwise.
fn the_first_step_is_not_the_job(cell: &Context) -> Result<()> {
    let client = nodes(cell)?.client("--hold 0.1");
    let steps = [
        "--mps --mps-threads=30",
        "",
        "--mps --mps-threads=20",
        "--mps=off",
    ];
    let line = steps
        .map(|words| format!("srun {words} /bin/sh -c '{client}'"))
        .join(" && ");
    let job = ["salloc", "-N2", "--gres=gpu:1"];
    let records = ended(start(cell, &cell.user, &job, &line)?)?;
    let under: Vec<bool> = records.iter().map(|record| record.under_mps).collect();
    let asked = [true, true, false, false, true, true, false, false];
    ensure!(under == asked, "under MPS: {under:?}, not {asked:?}");
    ensure!(
        records[0].sms > records[4].sms,
        "30 and 20 per cent: {:?}, {:?}",
        records[0].sms,
        records[4].sms
    );
    Ok(())
}

fn by_constraint(cell: &Context) -> Result<()> {
    ensure!(
        one_client(cell, &["--constraint=mps", "--gres=gpu:1"])?,
        "not under MPS with --constraint=mps"
    );
    ensure!(
        one_client(cell, &["--constraint=mps&big", "--gres=gpu:1"])?,
        "not under MPS with two constraints"
    );
    ensure!(
        !one_client(cell, &["--constraint=big", "--gres=gpu:1"])?,
        "under MPS with another constraint"
    );
    Ok(())
}

fn by_partition(cell: &Context) -> Result<()> {
    ensure!(
        one_client(cell, &["--partition=shared", "--gres=gpu:1"])?,
        "not under MPS in the partition"
    );
    ensure!(
        !one_client(cell, &["--partition=main", "--gres=gpu:1"])?,
        "under MPS in another partition"
    );
    Ok(())
}

fn by_gres(cell: &Context) -> Result<()> {
    ensure!(
        one_client(cell, &["--gres=mps:50"])?,
        "not under MPS with --gres=mps:50"
    );
    Ok(())
}

fn the_user_may_say_no(cell: &Context) -> Result<()> {
    ensure!(
        !one_client(cell, &["--partition=shared", "--mps=off", "--gres=gpu:1"])?,
        "under MPS with --mps=off"
    );
    Ok(())
}

/// The compute mode stays: no job has the GPU for itself.
fn two_jobs_on_one_gpu(cell: &Context) -> Result<()> {
    let line = nodes(cell)?.client("--hold 1.5");
    let command = ["srun", "--mps", "-w", "node1", "--gres=shard:2"];
    let mut first = start(cell, &cell.user, &command, &line)?;
    let mut second = start(cell, &cell.other, &command, &line)?;
    let mut together = 0;
    while first.runs()? || second.runs()? {
        for node in &nodes(cell)?.nodes {
            ensure!(
                node.modes() == ["default"],
                "the mode of a shared GPU was changed: {:?}",
                node.modes()
            );
            let servers = node
                .daemons()
                .into_iter()
                .filter(|process| process.exe.ends_with("nvidia-cuda-mps-server"));
            together = together.max(servers.count());
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    ensure!(
        together == 2,
        "two servers at the same time expected, {together} seen"
    );
    let mut daemons = BTreeSet::new();
    for (job, user) in [(first, &cell.user), (second, &cell.other)] {
        let records = ended(job)?;
        check_daemons(&records, user.uid, 1)?;
        daemons.extend(records.iter().map(|record| record.daemon_pid));
    }
    ensure!(daemons.len() == 2, "a daemon each: {daemons:?}");
    Ok(())
}

fn srun_with_a_private_tmp(cell: &Context) -> Result<()> {
    let line = "touch /tmp/mine && ls /tmp";
    let done = cell
        .bed
        .srun(&cell.user, &["/bin/sh", "-c", line], LIMIT)?
        .success()?;
    ensure!(
        done.stdout == "mine\n",
        "/tmp is not the job's own: {}",
        done.stdout
    );
    let arguments = ["--mps", "-N2", "--ntasks-per-node=2", "--gres=gpu:1"];
    let records = clients(cell, &arguments, "--hold 0.2")?;
    ensure!(records.len() == 4, "four clients expected: {records:?}");
    check_daemons(&records, cell.user.uid, 1)
}

/// The job's mount namespace is older than the step's daemon.
fn a_steps_own_daemon_is_seen(cell: &Context) -> Result<()> {
    let line = nodes(cell)?.client("--hold 0.2");
    let steps = format!("srun /bin/true && srun --mps /bin/sh -c '{line}'");
    let argv = ["salloc", "-w", "node1", "--gres=gpu:1", "/bin/sh", "-c", &steps];
    let done = cell.bed.spawn(&cell.user, &argv)?.wait(LIMIT)?.success()?;
    let records = crate::mps::records(&done.stdout, &done.stderr)?;
    ensure!(records.iter().all(|record| record.under_mps), "{records:?}");
    Ok(())
}

fn every_request_is_refused(cell: &Context) -> Result<()> {
    for words in [
        &["--mps"][..],
        &["--mps", "--exclusive"],
        &["--mps", "--gres=disk:1"],
    ] {
        let argv = [&["srun", "-w", "node1"], words, &["/bin/echo", "ran"]].concat();
        let done = cell.bed.spawn(&cell.user, &argv)?.wait(LIMIT)?;
        ensure!(
            !done.status.success() && done.stdout.is_empty(),
            "it ran: {done:?}"
        );
        ensure!(done.stderr.contains("no GPU"), "not told: {done:?}");
    }
    Ok(())
}

/// Two jobs, one GPU each: the second's is number 0 for its tasks, and number 1 on the node.
fn the_second_gpu_is_the_second(cell: &Context) -> Result<()> {
    let line = nodes(cell)?.client("--hold 1.5");
    let command = ["srun", "--mps", "-w", "node1", "--gres=gpu:1"];
    let jobs = [&cell.user, &cell.other].map(|user| start(cell, user, &command, &line));
    let mut gpus = BTreeSet::new();
    for job in jobs {
        let records = ended(job?)?;
        ensure!(records.iter().all(|record| record.under_mps), "{records:?}");
        gpus.extend(records.into_iter().flat_map(|record| record.uuids));
    }
    let all: BTreeSet<_> = nodes(cell)?.node("node1")?.uuids().into_iter().collect();
    ensure!(gpus == all, "both GPUs of node1, by their own UUIDs: {gpus:?}");
    Ok(())
}

fn a_steps_own_daemon_has_its_gpu(cell: &Context) -> Result<()> {
    let records = two_steps_with_mps(cell)?;
    let gpus: BTreeSet<_> = records.iter().flat_map(|record| &record.uuids).collect();
    ensure!(records.iter().all(|record| record.under_mps), "{records:?}");
    ensure!(gpus.len() == 2, "a GPU for each step: {records:?}");
    Ok(())
}
