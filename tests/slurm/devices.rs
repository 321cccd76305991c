//! Nodes that list their GPUs in another way than NVML counts them: MPS is on the GPU that the same
//! job has without it. The site matrix tests this for most lists. Here are other lists and
//! requests, and the check of lists.
//!
//! The measure is the job without `--mps`. Its client counts, as CUDA does, the GPUs with device
//! files that it may open, in the order of the bus. It takes those that `CUDA_VISIBLE_DEVICES`
//! names.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use tests::slurm::{Gpus, Options, Record};

use crate::jobs::{LIMIT, check_bare, check_daemons, gpus, holds, says};
use crate::runner::{Cell, Context, Group, cells};
use crate::sites::no_cgroups;

const fn group(name: &'static str, options: fn() -> Options, cells: &'static [Cell]) -> Group {
    Group {
        options,
        ..Group::fast(name, "", cells)
    }
}

const fn confined(name: &'static str, options: fn() -> Options, cells: &'static [Cell]) -> Group {
    Group {
        needs: || no_cgroups(&["devices", "freezer"]),
        ..group(name, options, cells)
    }
}

/// `File=/dev/nvidia[0-3]` on a node with the bus order 2, 3, 0, 1, as sites have it.
pub const MINORS: Group = confined(
    "devices_minors",
    || constrained(minors()),
    cells![
        steps_at_once_have_a_gpu_each,
        the_list_is_slurmds_own,
        the_check_is_content
    ],
);

/// The same without ConstrainDevices.
pub const MINORS_FREE: Group = group("devices_minors_free", minors, cells![the_check_warns]);

const TYPES: &[Cell] = cells![each_type_has_its_gpu, a_forged_list_is_refused];

/// Types that are listed against the order of the bus.
pub const REVERSED: Group = confined("devices_reversed", || constrained(reversed()), TYPES);

/// The same without ConstrainDevices.
pub const REVERSED_FREE: Group = group("devices_reversed_free", reversed, TYPES);

const UNMANAGED: &[Cell] = cells![a_gpu_that_slurm_does_not_manage_is_named];

/// A GPU that Slurm does not know: every task can open it, and number 0 leads CUDA to it.
pub const PARTIAL: Group = confined("devices_partial", || constrained(partial()), UNMANAGED);

/// The same without ConstrainDevices.
pub const PARTIAL_FREE: Group = group("devices_partial_free", partial, UNMANAGED);

fn minors() -> Options {
    options(&[2, 3, 0, 1], "gpu:4", "Name=gpu File=/dev/nvidia[0-3]\n")
}

fn reversed() -> Options {
    let lines = "Name=gpu Type=b File=/dev/nvidia1\nName=gpu Type=a File=/dev/nvidia0\n";
    options(&[0, 1], "gpu:b:1,gpu:a:1", lines)
}

fn partial() -> Options {
    options(&[0, 1], "gpu:1", "Name=gpu File=/dev/nvidia1\n")
}

fn options(minors: &[u32], gres: &str, gres_conf: &str) -> Options {
    Options {
        nodes: 1,
        gpus: Gpus::Simulated(minors.len() as u32),
        minors: minors.to_vec(),
        gres: Some(gres.to_owned()),
        gres_conf: Some(gres_conf.to_owned()),
        ..Options::default()
    }
}

fn constrained(options: Options) -> Options {
    options.with_cgroups(&["ConstrainDevices=yes"])
}

/// The GPUs of each task, by local rank, of a job with these words. Checks that they are the same
/// without MPS.
fn same(cell: &Context, words: &str) -> Result<Vec<Vec<String>>> {
    let mut found = Vec::new();
    for mps in ["", "--mps "] {
        let records = cell.clients(&format!("{mps}{words}"), "--hold 0.1")?;
        match mps {
            "" => check_bare(&records)?,
            _ => check_daemons(&records, cell.user.uid, 1)?,
        }
        found.push(records.into_iter().map(|record| record.uuids).collect());
    }
    let same = found[0] == found[1];
    ensure!(same, "{words}: without and with MPS {found:?}");
    Ok(found.swap_remove(0))
}

fn steps_at_once_have_a_gpu_each(cell: &Context) -> Result<()> {
    let mut found = Vec::new();
    for mps in ["", "--mps"] {
        let line = cell.client("--hold 1");
        let step = format!("srun {mps} -n1 --gres=gpu:1 --exact /bin/sh -c '{line}'");
        let steps = format!("{step} & {step} & wait");
        let records = cell.records("salloc -n2 --gres=gpu:2", &steps)?;
        let right = |record: &Record| record.under_mps != mps.is_empty();
        holds(records.len() == 2 && records.iter().all(right), &records)?;
        found.push(gpus(&records));
    }
    ensure!(found[0] == found[1], "without and with MPS {found:?}");
    Ok(())
}

/// What `mpsctl slurm check` says of this node's GPUs: the lines about gres.conf.
fn check(cell: &Context) -> Result<Vec<String>> {
    let (mpsctl, conf) = (cell.mpsctl(), cell.bed.dir().join("etc/slurm.conf"));
    let conf = conf.display();
    let line = format!("{mpsctl} slurm check --node node1 --slurm-conf {conf}");
    let words: Vec<&str> = line.split(' ').collect();
    let said = cell.bed.on_node("node1", &words)?.stdout;
    let about = |line: &&str| line.contains("gres.conf") || line.contains("/dev/nvidia");
    Ok(said.lines().filter(about).map(str::to_owned).collect())
}

fn the_check_is_content(cell: &Context) -> Result<()> {
    let said = check(cell)?;
    let fine = |line: &str| line.starts_with("OK    each of the ");
    holds(matches!(&said[..], [line] if fine(line)), &said)
}

fn the_check_warns(cell: &Context) -> Result<()> {
    let said = check(cell)?;
    let warns = |line: &String| line.starts_with("WARN  ") && line.contains("gres.conf' line ");
    holds(!said.is_empty() && said.iter().all(warns), &said)
}

/// Slurm tells the prolog the GPUs of one type only, so the controller is asked for all.
fn each_type_has_its_gpu(cell: &Context) -> Result<()> {
    let mut all = BTreeSet::new();
    for gres in ["--gres=gpu:a:1", "--gres=gpu:b:1"] {
        all.extend(same(cell, gres)?.concat());
    }
    holds(all.len() == 2, &all)?;
    let both = same(cell, "--gres=gpu:a:1,gpu:b:1")?.concat();
    holds(both.len() == 2, &both)
}

/// The user's text looks like the controller's answer about the job.
fn a_forged_list_is_refused(cell: &Context) -> Result<()> {
    let forged = "x Nodes=node[1-2] GRES=gpu:2(IDX:0-1)";
    let argv = ["srun", "--mps", "-J", forged, "--gres=gpu:a:1", "true"];
    let done = cell.bed.spawn(&cell.user, &argv)?.wait(LIMIT)?.fails()?;
    // From 25.11 on the line that submitted it is shown too.
    says(&done.stderr, &["lists of them for this job"])
}

/// Slurm gives the job `/dev/nvidia1`, but CUDA would take the other GPU. The job is refused in one
/// line that says so, and neither GPU is touched.
fn a_gpu_that_slurm_does_not_manage_is_named(cell: &Context) -> Result<()> {
    let node = &cell.nodes.nodes[0];
    let without = cell.clients("--gres=gpu:1", "")?;
    // CUDA's own choice.
    holds(without[0].uuids == node.uuids()[..1], &without)?;
    let words = ["/dev/nvidia1", "/dev/nvidia0", "gres.conf"];
    cell.check_refused("srun --mps --gres=gpu:1", &words)?;
    holds(node.modes() == ["default"; 2], &node.modes())?;
    let said = check(cell)?;
    let fails = |line: &str| line.starts_with("FAIL  ") && line.contains("gres.conf' line 1)");
    holds(matches!(&said[..], [line] if fails(line)), &said)
}

/// Each has all GPUs of the node: without one of them no job could have MPS.
const LISTS: [(&str, &str); 9] = [
    ("gpu:4", "Name=gpu File=/dev/nvidia[0-3]\n"),
    ("gpu:2", "Name=gpu File=/dev/nvidia[2-3,0-1]\n"),
    ("gpu:4", "Name=gpu File=/dev/nvidia3,/dev/nvidia[0-2]\n"),
    (
        "gpu:b:2,gpu:a:2",
        "Name=gpu Type=a File=/dev/nvidia[0-1]\nName=gpu Type=b File=/dev/nvidia[2-3]\n",
    ),
    (
        "gpu:a:2(S:0),gpu:b:2",
        "Name=gpu Type=b File=/dev/nvidia[1-2]\nName=gpu Type=A File=/dev/nvidia0\nName=gpu Type=a File=/dev/nvidia3\n",
    ),
    (
        "gpu:4",
        "NAME=gpu TYPE=b FILE=/dev/nvidia[1,3]\nName=gpu Type=a File=/dev/nvidia[0,2]\n",
    ),
    (
        "gpu:4",
        "NodeName=node[1-2] Name=gpu File=/dev/nvidia2\nNodeName=other Name=gpu File=/dev/nvidia3\nName=gpu File=\"/dev/nvidia[0-1,3]\" # last\n",
    ),
    (
        "gpu:4",
        "AutoDetect=off\nName=gpu \\\nFile=/dev/nvidia2\nInclude more.conf\n",
    ),
    (
        "gpu:b,gpu:a:3",
        "Name=gpu Type=a File=/dev/nvidia[1-3]\nName=gpu Type=b File=/dev/nvidia0\n",
    ),
];

/// We read the same list from a gres.conf as `slurmd -G` prints, in the same order.
fn the_list_is_slurmds_own(cell: &Context) -> Result<()> {
    let bed = &cell.bed;
    let conf = fs::read_to_string(bed.dir().join("etc/slurm.conf"))?;
    for (number, (granted, gres)) in LISTS.iter().enumerate() {
        let dir = bed.dir().join(format!("list-{number}"));
        fs::create_dir(&dir)?;
        let file = dir.join("slurm.conf");
        let text = conf.replace("Gres=gpu:4", &format!("Gres={granted}"));
        fs::write(&file, text)?;
        fs::copy(bed.dir().join("etc/cgroup.conf"), dir.join("cgroup.conf"))?;
        fs::write(dir.join("gres.conf"), gres)?;
        fs::write(dir.join("more.conf"), "Name=gpu File=/dev/nvidia[0-1,3]\n")?;
        let file_name = file.to_str().context("a path of ours")?;
        let said = bed.on_node("node1", &["slurmd", "-G", "-N", "node1", "-f", file_name])?;
        let said = said.success()?.said();
        let lines = said.lines().filter(|line| line.contains("Gres Name=gpu"));
        let files = lines.filter_map(|line| line.split_once("File=")?.1.split(' ').next());
        // Slurm's names of devices expand as its names of hosts.
        let files = files.collect::<Vec<_>>().join(",").replace("/dev/", "");
        let theirs = cell.root(&format!("scontrol show hostnames {files}"))?;
        let theirs: Vec<&str> = theirs.lines().collect();
        ensure!(!theirs.is_empty(), "{granted} {gres}: {said}");
        let what = format!("{granted} {gres}: slurmd {theirs:?}");
        let ours = (0..theirs.len()).map(|place| ours(cell, file_name, place));
        let ours: Vec<String> = ours.collect::<Result<_>>().context(what.clone())?;
        ensure!(ours == theirs, "{what}, not {ours:?}");
    }
    Ok(())
}

/// The file of the GPU that `mpsctl plan` gives a job with this place of the list. As a step it
/// asks no controller, which may have a job 7.
fn ours(cell: &Context, conf: &str, place: usize) -> Result<String> {
    let line = format!(
        "SLURM_CONF={conf} SLURM_STEP_GPUS={place} CUDA_VISIBLE_DEVICES=0 SLURMD_NODENAME=node1 \
         SLURM_JOB_ID=7 SLURM_JOB_UID={} SLURM_STEP_ID=0 {} plan --node node1 --scheduler slurm --request MPS=true --json",
        cell.user.uid,
        cell.mpsctl()
    );
    let ran = cell.bed.on_node("node1", &["/bin/sh", "-c", &line])?;
    let plan: serde_json::Value = serde_json::from_str(&ran.success()?.stdout)?;
    let mut uuids = cell.nodes.node("node1")?.uuids().into_iter();
    let at = uuids.position(|uuid| plan["gpus"][0]["uuid"] == uuid);
    let minor = minors().minors[at.with_context(|| plan.to_string())?];
    Ok(format!("nvidia{minor}"))
}
