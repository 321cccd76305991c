//! MIG devices, as a real Slurm lists and names them. Its file for tests, `fake_gpus.conf`,
//! describes them in the words that its plugin for NVML uses (docs/facts/slurm.md#gpus-of-a-job).
//! No GPU here has any.
//!
//! The measure of a cell is the job without `--mps`. Its client sees, as CUDA does, one MIG device
//! of those that it may open and that `CUDA_VISIBLE_DEVICES` names.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Result, ensure};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use tests::double::mig;
use tests::slurm::{Bed, Gpus, Options, Record, SIMULATED_MAJOR, Simulated, private_dev, stamp};

use crate::failures::starts_again_soon;
use crate::jobs::{check_bare, check_daemons, gpus, holds, records};
use crate::runner::{Context, Group, cells};
use crate::sites::no_cgroups;

/// A node with a divided GPU and a whole one. Tasks can open only their own devices. A task with a
/// device of its own gets the name of the step's first device here, and can open neither
/// (docs/facts/slurm.md#gpus-of-a-job).
pub const CONFINED: Group = Group {
    options: || free().with_cgroups(&["ConstrainDevices=yes"]),
    prepare,
    needs: || no_mig().or_else(|| no_cgroups(&["devices", "freezer"])),
    ..Group::fast(
        "mig",
        CONFIG,
        cells![
            a_job_has_the_same_device_with_and_without_mps,
            tasks_with_a_device_each_have_a_daemon_each,
            ranks_share_two_devices,
            a_batch_script_and_its_step_have_the_device,
            two_kinds_of_devices_are_refused,
        ],
    )
};

/// The same without ConstrainDevices.
pub const FREE: Group = Group {
    options: free,
    prepare,
    needs: no_mig,
    ..Group::fast(
        "mig_free",
        CONFIG,
        cells![
            a_job_has_the_same_device_with_and_without_mps,
            tasks_with_a_device_each_have_a_daemon_each,
            tasks_bound_by_slurm_have_the_same_devices,
            ranks_share_two_devices,
            two_kinds_of_devices_are_refused,
        ],
    )
};

/// In one release they come only from NVML (docs/facts/slurm.md#gpus-of-a-job).
fn no_mig() -> Option<String> {
    let [_, major, minor, _] = stamp::installed().ok()?.to_be_bytes();
    let why = "a fake_gpus.conf of Slurm 25.11 makes no MIG devices";
    ((major, minor) == (25, 11)).then(|| why.to_owned())
}

const CONFIG: &str = "[slurm]\nrequeue_limit = 1\n";
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

fn prepare(bed: &mut Bed, nodes: &mut Simulated) -> Result<()> {
    let dev = private_dev(bed.dir(), "node1");
    let caps = dev.join("nvidia-caps");
    fs::create_dir(&caps)?;
    let mut devices = vec![mig(0, 0), mig(0, 1), mig(0, 1)];
    devices[2].uuid = mig(0, 2).uuid;
    let mut lines = String::new();
    for (number, (device, kind)) in devices.iter_mut().zip([SMALL, LARGE, LARGE]).enumerate() {
        let mut files = vec![dev.join("gpu0")];
        // For the GPU instance and the compute instance.
        for part in 0..2 {
            let minor = number as u64 * 2 + part + 1;
            let file = caps.join(format!("nvidia-cap{minor}"));
            let number = makedev(SIMULATED_MAJOR, 200 + minor);
            mknod(&file, SFlag::S_IFCHR, Mode::empty(), number)?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
            device.caps.push(file.clone());
            files.push(file);
        }
        let files = files.iter().map(|file| file.display().to_string());
        let files: Vec<String> = files.collect();
        lines += &line(kind, &files.join(","), Some(&device.uuid));
    }
    lines += &line("whole", &dev.join("gpu1").display().to_string(), None);
    fs::write(bed.dir().join("etc/fake_gpus.conf"), lines)?;
    nodes.nodes[0].change(|node| node.gpu[0].mig = devices.clone());
    starts_again_soon(bed, nodes)
}

/// `<type>|<CPUs>|<near>|<links>|<files>|<UUID>|<flags>`, as `_add_fake_gpus_from_file` reads it.
/// From 26.05 on the plugin for NVML gives MIG devices `env_uuid`; earlier releases have no such
/// word.
fn line(kind: &str, files: &str, uuid: Option<&str>) -> String {
    let uuid = uuid.unwrap_or("(null)");
    format!("{kind}|8|0-7|(null)|{files}|{uuid}|nvidia_gpu_env,env_uuid\n")
}

fn uuids(records: &[Record]) -> Vec<Vec<String>> {
    records.iter().map(|record| record.uuids.clone()).collect()
}

/// Checks that the job has the same devices with and without MPS, task by task, and this many
/// daemons.
fn same(cell: &Context, words: &str, daemons: usize) -> Result<Vec<Vec<String>>> {
    let without = cell.clients(words, "--hold 0.1")?;
    check_bare(&without)?;
    let with = cell.clients(&format!("--mps {words}"), "--hold 0.1")?;
    check_daemons(&with, cell.user.uid, daemons)?;
    let (without, with) = (uuids(&without), uuids(&with));
    let same = with == without;
    ensure!(
        same,
        "{words}: with MPS on {with:?}, without on {without:?}"
    );
    let is_one = |seen: &Vec<String>| seen.len() == 1 && seen[0].starts_with("MIG-");
    holds(with.iter().all(is_one), &with)?;
    Ok(with)
}

fn a_job_has_the_same_device_with_and_without_mps(cell: &Context) -> Result<()> {
    let small = same(cell, &format!("-n2 --gres=gpu:{SMALL}:1"), 1)?;
    holds(small.iter().all(|seen| seen[0] == mig(0, 0).uuid), &small)?;
    let large = format!("--gres=gpu:{LARGE}:1");
    same(cell, &format!("-n2 {large}"), 1)?;
    let limited = format!("--mps {large} --mps-threads=50 --mps-mem=2G");
    let limited = cell.clients(&limited, "--hold 0.1")?;
    let right = |record: &Record| {
        record.under_mps && record.sms == Some(18) && record.memory_limit_mib == Some(2048)
    };
    holds(limited.iter().all(right), &limited)
}

fn tasks_bound_by_slurm_have_the_same_devices(cell: &Context) -> Result<()> {
    let words = format!("-n2 --gres=gpu:{LARGE}:2 --gpu-bind=single:1");
    let bound = same(cell, &words, 2)?;
    holds(bound[0] != bound[1], &bound)
}

/// Slurm 22.05 names no device to such a task, but counts its step's GPUs. So this is not a step
/// without GPUs.
fn tasks_with_a_device_each_have_a_daemon_each(cell: &Context) -> Result<()> {
    let words = format!("--mps -n2 --gpus-per-task={LARGE}:1");
    let records = cell.clients(&words, "--hold 0.1")?;
    check_daemons(&records, cell.user.uid, 2)?;
    holds(gpus(&records).len() == 2, &records)
}

/// Slurm does not bind them: without us every task sees the first device, with us they take turns.
fn ranks_share_two_devices(cell: &Context) -> Result<()> {
    let words = format!("-n4 --gres=gpu:{LARGE}:2");
    let without = uuids(&cell.clients(&words, "--hold 0.1")?);
    holds(without.iter().all(|seen| *seen == without[0]), &without)?;
    let with = cell.clients(&format!("--mps {words}"), "--hold 0.1")?;
    check_daemons(&with, cell.user.uid, 2)?;
    let with = uuids(&with);
    let turns =
        with[0] == without[0] && with[0] != with[1] && with[0] == with[2] && with[1] == with[3];
    holds(turns, &with)
}

fn a_batch_script_and_its_step_have_the_device(cell: &Context) -> Result<()> {
    let line = cell.client("--hold 0.1");
    let script = format!("({line})\nsrun /bin/sh -c '{line}'");
    let (_, said) = cell.batch(&format!("--mps --gres=gpu:{SMALL}:1"), &script)?;
    let records = records(&said)?;
    let right = |record: &Record| record.under_mps && record.uuids == [mig(0, 0).uuid];
    holds(records.len() == 2 && records.iter().all(right), &records)
}

/// Slurm names one of them to the prolog. So the job's devices are not certain, or a mix that no
/// process sees.
fn two_kinds_of_devices_are_refused(cell: &Context) -> Result<()> {
    for other in ["whole", LARGE] {
        let command = format!("srun --mps --gres=gpu:{SMALL}:1,gpu:{other}:1");
        let done = cell.check_refused(&command, &[])?;
        let whys = ["not known", "not certain", "no process sees both"];
        holds(whys.iter().any(|why| done.stderr.contains(why)), &done)?;
    }
    cell.check_in_service()
}
