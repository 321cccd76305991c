//! Nodes that list their GPUs in another way than NVML counts them: MPS is on the GPU that the same
//! job has without it. The site matrix tests this for most lists. Here are other lists and
//! requests, and the check of lists.
//!
//! The measure is the job without `--mps`. Its client counts, as CUDA does, the GPUs with device
//! files that it may open, in the order of the bus. It takes those that `CUDA_VISIBLE_DEVICES`
//! names.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use tests::slurm::{Gpus, Options};

use crate::jobs::{check_bare, check_daemons, gpus, holds, says};
use crate::runner::{Cell, Context, Group, cells, fast};
use crate::sites::no_cgroups;

const fn group(name: &'static str, options: fn() -> Options, cells: &'static [Cell]) -> Group {
    Group {
        options,
        prepare: |bed| fast(bed, ""),
        ..Group::new(name, cells)
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
    cells![steps_at_once_have_a_gpu_each, the_check_is_content],
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
    ensure!(
        found[0] == found[1],
        "{words}: without and with MPS {found:?}"
    );
    Ok(found.swap_remove(0))
}

/// Only the job's own GPUs change their compute mode while it runs.
fn only_own_gpus_are_exclusive(cell: &Context, words: &str) -> Result<()> {
    let node = &cell.nodes.nodes[0];
    let own: BTreeSet<String> = same(cell, words)?.concat().into_iter().collect();
    let job = cell.start(&format!("srun --mps {words}"), &cell.client("--hold 2"))?;
    let exclusive = || -> BTreeSet<String> {
        let modes = node.uuids().into_iter().zip(node.modes());
        modes
            .filter(|(_, mode)| mode == "exclusive_process")
            .map(|(uuid, _)| uuid)
            .collect()
    };
    let waited = cell.wait("an exclusive GPU", || Ok(exclusive().len() == own.len()));
    let then = exclusive();
    crate::jobs::ended(job)?;
    waited?;
    ensure!(
        then == own,
        "{words}: exclusive {then:?}, the job's {own:?}"
    );
    Ok(())
}

/// Two steps in an allocation without MPS, each with its own daemon on its own GPU.
fn steps_at_once_have_a_gpu_each(cell: &Context) -> Result<()> {
    let mut found = Vec::new();
    for mps in ["", "--mps"] {
        let line = cell.client("--hold 1");
        let step = format!("srun {mps} -n1 --gres=gpu:1 --exact /bin/sh -c '{line}'");
        let records = cell.records(
            "salloc -n2 --gres=gpu:2",
            &format!("{step} & {step} & wait"),
        )?;
        let right = |record: &tests::slurm::Record| record.under_mps != mps.is_empty();
        holds(records.len() == 2 && records.iter().all(right), &records)?;
        found.push(gpus(&records));
    }
    ensure!(found[0] == found[1], "without and with MPS {found:?}");
    Ok(())
}

/// What `mpsctl slurm check` says of this node's GPUs: the lines about gres.conf.
fn check(cell: &Context) -> Result<Vec<String>> {
    let conf = cell.bed.dir().join("etc/slurm.conf");
    let line = format!(
        "{} slurm check --node node1 --slurm-conf {}",
        cell.mpsctl(),
        conf.display()
    );
    let said = cell
        .bed
        .on_node("node1", &line.split(' ').collect::<Vec<_>>())?
        .stdout;
    let about = |line: &&str| line.contains("gres.conf") || line.contains("/dev/nvidia");
    Ok(said.lines().filter(about).map(str::to_owned).collect())
}

fn the_check_is_content(cell: &Context) -> Result<()> {
    let said = check(cell)?;
    holds(
        matches!(&said[..], [line] if line.starts_with("OK    each of the ")),
        &said,
    )
}

/// It names the lines of gres.conf that lead to other GPUs.
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
        only_own_gpus_are_exclusive(cell, gres)?;
    }
    holds(all.len() == 2, &all)?;
    let both = same(cell, "--gres=gpu:a:1,gpu:b:1")?.concat();
    holds(both.len() == 2, &both)
}

/// The user's text looks like the controller's answer about the job.
fn a_forged_list_is_refused(cell: &Context) -> Result<()> {
    let forged = "x Nodes=node[1-2] GRES=gpu:2(IDX:0-1)";
    let argv = ["srun", "--mps", "-J", forged, "--gres=gpu:a:1", "true"];
    let done = cell
        .bed
        .spawn(&cell.user, &argv)?
        .wait(crate::jobs::LIMIT)?
        .fails()?;
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
    holds(
        node.modes().iter().all(|mode| mode == "default"),
        &node.modes(),
    )?;
    let said = check(cell)?;
    let fails = |line: &str| line.starts_with("FAIL  ") && line.contains("gres.conf' line 1)");
    holds(matches!(&said[..], [line] if fails(line)), &said)
}
