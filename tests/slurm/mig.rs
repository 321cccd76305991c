//! MIG devices, as a real Slurm lists and names them. It is told of them by its own file for tests, `fake_gpus.conf`, in the words
//! that its plugin for NVML uses (docs/facts/slurm.md#gpus-of-a-job). No GPU here has any.
//!
//! The oracle of a cell is the job without `--mps`: a client that sees, as CUDA does, one MIG device of those that it may open and
//! that `CUDA_VISIBLE_DEVICES` names.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result, ensure};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use tests::double::mig;
use tests::slurm::{Bed, Gpus, Options, Record, SIMULATED_MAJOR, Simulated, private_dev, stamp};

use crate::failures::{comment, end_held, starts_again_soon};
use crate::mps::{LIMIT, check_daemons, clients, nodes};
use crate::runner::{Context, Group};
use crate::sites::no_cgroups;

/// A node with a divided GPU and a whole one, whose tasks can open their own devices only.
pub const CONFINED: Group = Group {
    name: "mig",
    options: || Options {
        slurm_lines: ["ProctrackType=proctrack/cgroup", "TaskPlugin=task/cgroup"]
            .map(str::to_owned)
            .to_vec(),
        cgroup_lines: [
            "CgroupAutomount=no",
            "CgroupMountpoint=/sys/fs/cgroup",
            "CgroupPlugin=cgroup/v1",
            "ConstrainDevices=yes",
        ]
        .map(str::to_owned)
        .to_vec(),
        ..free()
    },
    prepare,
    needs: || no_mig().or_else(|| no_cgroups(&["devices", "freezer"])),
    // A task with a device of its own gets the name of the step's first one here, and can open neither (docs/facts/slurm.md#gpus-of-a-job).
    cells: &[
        ("one_device", one_device),
        ("devices_by_type", devices_by_type),
        ("ranks_share_two_devices", ranks_share_two_devices),
        ("a_batch_job", a_batch_job),
        ("no_mix_and_no_guess", no_mix_and_no_guess),
    ],
};

/// The same where tasks can open all devices.
pub const FREE: Group = Group {
    name: "mig_free",
    options: free,
    prepare,
    needs: no_mig,
    cells: &[
        ("one_device", one_device),
        ("devices_by_type", devices_by_type),
        ("a_device_for_each_task", a_device_for_each_task),
        ("ranks_share_two_devices", ranks_share_two_devices),
        ("no_mix_and_no_guess", no_mix_and_no_guess),
        ("a_device_that_is_gone", a_device_that_is_gone),
    ],
};

/// Of all releases one can have them from NVML alone (docs/facts/slurm.md#gpus-of-a-job).
fn no_mig() -> Option<String> {
    let [_, major, minor, _] = stamp::installed().ok()?.to_be_bytes();
    let why = "a fake_gpus.conf of Slurm 25.11 makes no MIG devices";
    ((major, minor) == (25, 11)).then(|| why.to_owned())
}

const SMALL: &str = "h200_1g.18gb";
const LARGE: &str = "h200_2g.36gb";

fn free() -> Options {
    Options {
        nodes: 1,
        gpus: Gpus::Simulated(2),
        gres: Some(format!("gpu:{SMALL}:1,gpu:{LARGE}:2,gpu:whole:1")),
        gres_conf: Some(String::new()),
        ..Options::default()
    }
}

/// The first GPU has a small MIG device and two larger ones; the second is whole.
fn prepare(bed: &mut Bed) -> Result<Option<Simulated>> {
    let dev = private_dev(bed.dir(), "node1");
    let caps = dev.join("nvidia-caps");
    fs::create_dir(&caps)?;
    let mut devices = vec![mig(0, 0), mig(0, 1), mig(0, 1)];
    devices[2].uuid = mig(0, 2).uuid;
    let mut lines = String::new();
    for (number, (device, kind)) in devices.iter_mut().zip([SMALL, LARGE, LARGE]).enumerate() {
        let mut files = vec![dev.join("gpu0")];
        // Of the GPU instance and of the compute instance.
        for part in 0..2 {
            let minor = number as u64 * 2 + part + 1;
            let file = caps.join(format!("nvidia-cap{minor}"));
            mknod(
                &file,
                SFlag::S_IFCHR,
                Mode::empty(),
                makedev(SIMULATED_MAJOR, 200 + minor),
            )?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
            device.caps.push(file.clone());
            files.push(file);
        }
        let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        lines += &line(kind, &files.join(","), Some(&device.uuid));
    }
    lines += &line("whole", &dev.join("gpu1").display().to_string(), None);
    fs::write(bed.dir().join("etc/fake_gpus.conf"), lines)?;
    starts_again_soon(bed);
    let shape = |node: tests::double::Builder| node.fast().describe(|node| node.gpu[0].mig = devices.clone());
    Simulated::install(bed, "[slurm]\nrequeue_limit = 1\n", shape).map(Some)
}

/// `<type>|<CPUs>|<near>|<links>|<files>|<UUID>|<flags>`, as `_add_fake_gpus_from_file` reads it. From 26.05 on `env_uuid` is what the plugin
/// for NVML gives MIG devices; releases before know no such word.
fn line(kind: &str, files: &str, uuid: Option<&str>) -> String {
    let uuid = uuid.unwrap_or("(null)");
    format!("{kind}|8|0-7|(null)|{files}|{uuid}|nvidia_gpu_env,env_uuid\n")
}

fn tasks(cell: &Context, words: &[&str]) -> Result<Vec<Record>> {
    let mut records = clients(cell, words, "--hold 0.1")?;
    records.sort_by_key(|record| record.local_rank);
    Ok(records)
}

fn uuids(records: &[Record]) -> Vec<Vec<String>> {
    records.iter().map(|record| record.uuids.clone()).collect()
}

/// The job has the same devices with and without MPS, task by task, and so many daemons.
fn same(cell: &Context, words: &[&str], daemons: usize) -> Result<Vec<Vec<String>>> {
    let without = tasks(cell, words)?;
    ensure!(without.iter().all(|record| !record.under_mps), "{without:?}");
    let with = tasks(cell, &[&["--mps"], words].concat())?;
    check_daemons(&with, cell.user.uid, daemons)?;
    let (without, with) = (uuids(&without), uuids(&with));
    ensure!(
        with == without,
        "{words:?}: with MPS on {with:?}, without on {without:?}"
    );
    ensure!(
        with.iter()
            .all(|seen| seen.len() == 1 && seen[0].starts_with("MIG-")),
        "{with:?}"
    );
    Ok(with)
}

fn one_device(cell: &Context) -> Result<()> {
    let small = same(cell, &["-n2", &format!("--gres=gpu:{SMALL}:1")], 1)?;
    ensure!(small.iter().all(|seen| seen[0] == mig(0, 0).uuid), "{small:?}");
    same(cell, &["-n2", &format!("--gres=gpu:{LARGE}:1")], 1)?;
    let limits = ["--mps-threads=50", "--mps-mem=2G"];
    let gres = format!("--gres=gpu:{LARGE}:1");
    let limited = tasks(cell, &[&["--mps", gres.as_str()], &limits[..]].concat())?;
    ensure!(
        limited.iter().all(|record| record.under_mps
            && record.sms == Some(18)
            && record.memory_limit_mib == Some(2048)),
        "{limited:?}"
    );
    Ok(())
}

/// Bound by Slurm: each task has the device that it has without us.
fn a_device_for_each_task(cell: &Context) -> Result<()> {
    let gres = format!("--gres=gpu:{LARGE}:2");
    let bound = same(cell, &["-n2", &gres, "--gpu-bind=single:1"], 2)?;
    let all: BTreeSet<_> = bound.iter().flatten().collect();
    ensure!(all.len() == 2, "a device for each task: {bound:?}");
    Ok(())
}

/// Slurm 22.05 names nothing to such a task, and counts the GPUs of its step: not one without GPUs.
fn devices_by_type(cell: &Context) -> Result<()> {
    let per_task = format!("--gpus-per-task={LARGE}:1");
    let records = tasks(cell, &["--mps", "-n2", &per_task])?;
    check_daemons(&records, cell.user.uid, 2)?;
    let all: BTreeSet<_> = records.iter().flat_map(|record| &record.uuids).collect();
    ensure!(all.len() == 2, "a device for each task: {records:?}");
    Ok(())
}

/// Not bound by Slurm: without us every task sees the first device, with us they take turns.
fn ranks_share_two_devices(cell: &Context) -> Result<()> {
    let gres = format!("--gres=gpu:{LARGE}:2");
    let words = ["-n4", gres.as_str()];
    let without = uuids(&tasks(cell, &words)?);
    ensure!(
        without.iter().all(|seen| *seen == without[0]),
        "CUDA shows the first of several MIG devices: {without:?}"
    );
    let with = tasks(cell, &[&["--mps"], &words[..]].concat())?;
    check_daemons(&with, cell.user.uid, 2)?;
    let with = uuids(&with);
    ensure!(
        with[0] == without[0] && with[0] != with[1] && with[0] == with[2] && with[1] == with[3],
        "{with:?}"
    );
    Ok(())
}

/// The script itself, which has the job's first device, and a step in it.
fn a_batch_job(cell: &Context) -> Result<()> {
    let line = nodes(cell)?.client("--hold 0.1");
    let script = format!("({line})\nsrun /bin/sh -c '{line}'");
    let gres = format!("--gres=gpu:{SMALL}:1");
    let job = cell.bed.sbatch(&cell.user, &["--mps", &gres], &script)?;
    cell.bed
        .wait_job(job, &["COMPLETED", "FAILED", "CANCELLED"], LIMIT)?;
    let said = cell.bed.output(&cell.user, job);
    let records = crate::mps::records(&said, "")?;
    ensure!(
        records.len() == 2
            && records
                .iter()
                .all(|record| record.under_mps && record.uuids == [mig(0, 0).uuid]),
        "{said}"
    );
    Ok(())
}

/// Devices of two types, of which Slurm names one to the prolog: what the job has is not certain, or a mix.
fn no_mix_and_no_guess(cell: &Context) -> Result<()> {
    for gres in [
        format!("--gres=gpu:{SMALL}:1,gpu:whole:1"),
        format!("--gres=gpu:{SMALL}:1,gpu:{LARGE}:1"),
    ] {
        let line = nodes(cell)?.client("");
        let argv = ["srun", "--mps", &gres, "/bin/sh", "-c", &line];
        let done = cell.bed.spawn(&cell.user, &argv)?.wait(LIMIT)?;
        ensure!(
            !done.status.success() && done.stdout.is_empty(),
            "'{}' ran: {}",
            done.command,
            done.stdout
        );
        ensure!(
            ["not known", "not certain", "no process sees both"]
                .iter()
                .any(|why| done.stderr.contains(why)),
            "{gres}: {}",
            done.stderr
        );
    }
    let state = cell.bed.node_state("node1")?;
    ensure!(!state.state.contains("DRAIN"), "a refusal drains: {state:?}");
    Ok(())
}

/// The GPU was divided anew, and Slurm's list is an old one: the job comes back, is held in the end, and says why.
fn a_device_that_is_gone(cell: &Context) -> Result<()> {
    let gone = nodes(cell)?.change(|node| node.gpu[0].mig[0].uuid = mig(0, 9).uuid)?;
    let gres = format!("--gres=gpu:{SMALL}:1");
    let job = cell.bed.sbatch(&cell.user, &["--mps", &gres], "echo ran")?;
    let held = || {
        let shown = cell.bed.job(job)?.context("the job is gone")?;
        Ok(shown.get("Reason").is_some_and(|reason| reason == "JobHeldUser"))
    };
    let outcome = cell.bed.wait_until("a held job", LIMIT, held);
    // The reason is written once the job is held.
    let told = || Ok(comment(cell, job)?.contains("failed start 2: "));
    let outcome = outcome.and_then(|()| cell.bed.wait_until("the reason", LIMIT, told));
    let (said, shown) = (comment(cell, job)?, cell.bed.job(job)?);
    drop(gone);
    end_held(cell, job)?;
    outcome.with_context(|| format!("{shown:?}"))?;
    ensure!(
        said.contains("failed start 2: ") && said.contains(&mig(0, 0).uuid) && said.contains("divided anew"),
        "its comment: {said}"
    );
    ensure!(
        !cell.bed.output(&cell.user, job).contains("ran"),
        "the script ran without its MPS"
    );
    same(cell, &[&gres], 1).map(drop)
}
