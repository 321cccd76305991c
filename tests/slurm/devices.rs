//! Nodes whose GPUs are listed otherwise than NVML counts them: MPS is on the GPU that the same job has without it.
//!
//! The oracle of every cell is the job without `--mps`: a client that counts, as CUDA does, the GPUs whose device files it
//! may open, in the order of the bus, and takes those that `CUDA_VISIBLE_DEVICES` names.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use mpsd::scheduler::host::Answer;
use mpsd::scheduler::{self, CallOptions, GpuSource, Host, Input, Program, Site, ThisHost};
use mpsd_core::{ComputeMode, Gpu, GpuUuid, Inventory};
use tests::slurm::{Bed, Gpus, Options, Simulated};

use crate::mps::{LIMIT, check_daemons, clients, nodes, start};
use crate::runner::{Context, Group};
use crate::sites::no_cgroups;

/// `File=/dev/nvidia[0-3]` on a node whose bus order is 2, 3, 0, 1, as sites show it.
pub const MINORS: Group = Group {
    name: "devices_minors",
    options: || constrained(&[2, 3, 0, 1], "gpu:4", "Name=gpu File=/dev/nvidia[0-3]\n"),
    prepare,
    needs: || no_cgroups(&["devices", "freezer"]),
    cells: &[
        ("one_gpu", one_gpu),
        ("three_gpus", three_gpus),
        ("a_gpu_for_each_task", a_gpu_for_each_task),
        ("a_gpu_bound_to_each_task", a_gpu_bound_to_each_task),
        ("a_steps_own_daemon", a_steps_own_daemon),
        ("a_batch_job", a_batch_job),
        ("the_list_is_slurmds_own", the_list_is_slurmds_own),
        ("the_check_is_content", the_check_is_content),
    ],
};

/// The same where the numbers confine nothing.
pub const MINORS_FREE: Group = Group {
    name: "devices_minors_free",
    options: || free(&[2, 3, 0, 1], "gpu:4", "Name=gpu File=/dev/nvidia[0-3]\n"),
    prepare,
    needs: || None,
    cells: &[
        ("one_gpu", one_gpu),
        ("three_gpus", three_gpus),
        ("a_gpu_for_each_task", a_gpu_for_each_task),
        ("a_steps_own_daemon", a_steps_own_daemon),
        ("the_check_warns", the_check_warns),
    ],
};

const REVERSED_LINES: &str = "Name=gpu Type=b File=/dev/nvidia1\nName=gpu Type=a File=/dev/nvidia0\n";

/// Types listed against the order of the bus.
pub const REVERSED: Group = Group {
    name: "devices_reversed",
    options: || constrained(&[0, 1], "gpu:b:1,gpu:a:1", REVERSED_LINES),
    prepare,
    needs: || no_cgroups(&["devices", "freezer"]),
    cells: &[("each_type", each_type), ("both_types", both_types)],
};

/// The same where the numbers confine nothing.
pub const REVERSED_FREE: Group = Group {
    name: "devices_reversed_free",
    options: || free(&[0, 1], "gpu:b:1,gpu:a:1", REVERSED_LINES),
    prepare,
    needs: || None,
    cells: &[("each_type", each_type), ("both_types", both_types)],
};

/// A GPU that Slurm does not know: it confines nobody there, and number 0 leads CUDA to it.
pub const PARTIAL: Group = Group {
    name: "devices_partial",
    options: || constrained(&[0, 1], "gpu:1", "Name=gpu File=/dev/nvidia1\n"),
    prepare,
    needs: || no_cgroups(&["devices", "freezer"]),
    cells: &[(
        "a_gpu_that_slurm_does_not_manage",
        a_gpu_that_slurm_does_not_manage,
    )],
};

/// The same where the numbers confine nothing.
pub const PARTIAL_FREE: Group = Group {
    name: "devices_partial_free",
    options: || free(&[0, 1], "gpu:1", "Name=gpu File=/dev/nvidia1\n"),
    prepare,
    needs: || None,
    cells: &[(
        "a_gpu_that_slurm_does_not_manage",
        a_gpu_that_slurm_does_not_manage,
    )],
};

/// A list that leaves out the last GPU of the bus is no reason to refuse anybody.
pub const FIRST: Group = Group {
    name: "devices_first",
    options: || constrained(&[0, 1, 2], "gpu:2", "Name=gpu File=/dev/nvidia[0-1]\n"),
    prepare,
    needs: || no_cgroups(&["devices", "freezer"]),
    cells: &[("one_gpu", one_gpu), ("two_gpus", two_gpus)],
};

fn free(minors: &[u32], gres: &str, gres_conf: &str) -> Options {
    Options {
        nodes: 1,
        gpus: Gpus::Simulated(minors.len() as u32),
        minors: minors.to_vec(),
        gres: Some(gres.to_owned()),
        gres_conf: Some(gres_conf.to_owned()),
        ..Options::default()
    }
}

fn constrained(minors: &[u32], gres: &str, gres_conf: &str) -> Options {
    let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
    Options {
        slurm_lines: lines(&["ProctrackType=proctrack/cgroup", "TaskPlugin=task/cgroup"]),
        cgroup_lines: lines(&[
            "CgroupAutomount=no",
            "CgroupMountpoint=/sys/fs/cgroup",
            "CgroupPlugin=cgroup/v1",
            "ConstrainDevices=yes",
        ]),
        ..free(minors, gres, gres_conf)
    }
}

fn prepare(bed: &mut Bed) -> Result<Option<Simulated>> {
    Simulated::install(bed, "", |node| node.fast()).map(Some)
}

/// The GPUs of each task, by local rank, of a job with these words.
fn gpus(cell: &Context, words: &[&str]) -> Result<Vec<Vec<String>>> {
    let mut records = clients(cell, words, "--hold 0.1")?;
    let asked = words.contains(&"--mps");
    if asked {
        check_daemons(&records, cell.user.uid, 1)?;
    } else {
        ensure!(records.iter().all(|record| !record.under_mps), "{records:?}");
    }
    records.sort_by_key(|record| record.local_rank);
    Ok(records.into_iter().map(|record| record.uuids).collect())
}

/// The job has the same GPUs with and without MPS, task by task.
fn same(cell: &Context, words: &[&str]) -> Result<Vec<Vec<String>>> {
    let without = gpus(cell, words)?;
    let with = gpus(cell, &[&["--mps"], words].concat())?;
    ensure!(
        with == without,
        "{words:?}: with MPS on {with:?}, without on {without:?}"
    );
    Ok(without)
}

fn one_gpu(cell: &Context) -> Result<()> {
    same(cell, &["--gres=gpu:1"])?;
    only_own_gpus_are_exclusive(cell, &["--gres=gpu:1"])
}

fn two_gpus(cell: &Context) -> Result<()> {
    same(cell, &["--gres=gpu:2"]).map(drop)
}

fn three_gpus(cell: &Context) -> Result<()> {
    let tasks = same(cell, &["-n2", "--gres=gpu:3"])?;
    ensure!(tasks.len() == 2 && tasks[0].len() == 3, "{tasks:?}");
    only_own_gpus_are_exclusive(cell, &["--gres=gpu:3"])
}

/// No other GPU of the node changes its compute mode while the job runs.
fn only_own_gpus_are_exclusive(cell: &Context, words: &[&str]) -> Result<()> {
    let node = &nodes(cell)?.nodes[0];
    let own: BTreeSet<String> = gpus(cell, words)?.concat().into_iter().collect();
    let line = nodes(cell)?.client("--hold 2");
    let job = start(cell, &cell.user, &[&["srun", "--mps"], words].concat(), &line)?;
    let exclusive = || -> BTreeSet<String> {
        let modes = node.uuids().into_iter().zip(node.modes());
        modes
            .filter(|(_, mode)| mode == "exclusive_process")
            .map(|(uuid, _)| uuid)
            .collect()
    };
    let seen = cell
        .bed
        .wait_until("an exclusive GPU", LIMIT, || Ok(exclusive().len() == own.len()));
    let then = exclusive();
    job.wait(LIMIT)?.success()?;
    seen?;
    ensure!(then == own, "{words:?}: exclusive {then:?}, the job's {own:?}");
    Ok(())
}

fn a_gpu_for_each_task(cell: &Context) -> Result<()> {
    let tasks = same(cell, &["-n3", "--gpus-per-task=1"])?;
    let all: BTreeSet<_> = tasks.iter().flatten().collect();
    ensure!(
        tasks.len() == 3 && all.len() == 3,
        "a GPU for each task: {tasks:?}"
    );
    Ok(())
}

fn a_gpu_bound_to_each_task(cell: &Context) -> Result<()> {
    let tasks = same(cell, &["-n2", "--gres=gpu:3", "--gpu-bind=map_gpu:2,0"])?;
    let all: BTreeSet<_> = tasks.iter().flatten().collect();
    ensure!(all.len() == 2, "a GPU for each task: {tasks:?}");
    Ok(())
}

/// Two steps at once in an allocation without MPS, each with a daemon on its own GPU.
fn a_steps_own_daemon(cell: &Context) -> Result<()> {
    let of = |mps: &str| -> Result<BTreeSet<String>> {
        let line = nodes(cell)?.client("--hold 1");
        let step = format!("srun {mps} -n1 --gres=gpu:1 --exact /bin/sh -c '{line}'");
        let shell = format!("{step} & {step} & wait");
        let command = ["salloc", "-n2", "--gres=gpu:2"];
        let done = start(cell, &cell.user, &command, &shell)?
            .wait(LIMIT)?
            .success()?;
        let records = crate::mps::records(&done.stdout, &done.stderr)?;
        ensure!(
            records.len() == 2 && records.iter().all(|record| record.under_mps != mps.is_empty()),
            "{records:?}"
        );
        Ok(records.into_iter().flat_map(|record| record.uuids).collect())
    };
    let (without, with) = (of("")?, of("--mps")?);
    ensure!(with == without, "with MPS on {with:?}, without on {without:?}");
    Ok(())
}

/// The script itself, and a step in it.
fn a_batch_job(cell: &Context) -> Result<()> {
    let of = |mps: &[&str]| -> Result<Vec<Vec<String>>> {
        let line = nodes(cell)?.client("--hold 0.1");
        let script = format!("({line})\nsrun /bin/sh -c '{line}'");
        let words = [mps, &["--gres=gpu:2"]].concat();
        let job = cell.bed.sbatch(&cell.user, &words, &script)?;
        cell.bed
            .wait_job(job, &["COMPLETED", "FAILED", "CANCELLED"], LIMIT)?;
        let said = cell.bed.output(&cell.user, job);
        let records = crate::mps::records(&said, "")?;
        ensure!(
            records.len() == 2 && records.iter().all(|record| record.under_mps != mps.is_empty()),
            "{said}"
        );
        Ok(records.into_iter().map(|record| record.uuids).collect())
    };
    let (without, with) = (of(&[])?, of(&["--mps"])?);
    ensure!(with == without, "with MPS on {with:?}, without on {without:?}");
    Ok(())
}

/// What `mpsctl slurm check` says of this node's GPUs: the lines about gres.conf.
fn check(cell: &Context) -> Result<String> {
    let bed = &cell.bed;
    let product = &nodes(cell)?.product;
    let slurmd = bed.daemon("node1").context("slurmd runs")?.to_string();
    let path = |path: PathBuf| path.display().to_string();
    let (mpsctl, config) = (path(product.libexec.join("mpsctl")), path(product.config.clone()));
    let conf = path(bed.dir().join("etc/slurm.conf"));
    let enter = [
        "nsenter", "--mount", "--target", &slurmd, &mpsctl, "--config", &config,
    ];
    let verb = ["slurm", "check", "--node", "node1", "--slurm-conf", &conf];
    let said = bed.root(&[&enter[..], &verb].concat())?.stdout;
    let about = said
        .lines()
        .filter(|line| line.contains("gres.conf") || line.contains("/dev/nvidia"));
    Ok(about.map(|line| format!("{line}\n")).collect())
}

/// Every number leads to its own GPU, and the check says so.
fn the_check_is_content(cell: &Context) -> Result<()> {
    let said = check(cell)?;
    ensure!(
        said.starts_with("OK    each of the ") && said.lines().count() == 1,
        "{said}"
    );
    Ok(())
}

/// The check names the lines whose numbers lead to other GPUs.
fn the_check_warns(cell: &Context) -> Result<()> {
    let said = check(cell)?;
    ensure!(
        said.lines()
            .all(|line| line.starts_with("WARN  ") && line.contains("gres.conf' line "))
            && !said.is_empty(),
        "{said}"
    );
    Ok(())
}

fn each_type(cell: &Context) -> Result<()> {
    let mut all = BTreeSet::new();
    for gres in ["--gres=gpu:a:1", "--gres=gpu:b:1"] {
        all.extend(same(cell, &[gres])?.concat());
        only_own_gpus_are_exclusive(cell, &[gres])?;
    }
    ensure!(all.len() == 2, "two types, two GPUs: {all:?}");
    Ok(())
}

/// Slurm tells the prolog the GPUs of one of the types only; the controller is asked for all.
fn both_types(cell: &Context) -> Result<()> {
    let all = same(cell, &["--gres=gpu:a:1,gpu:b:1"])?.concat();
    ensure!(all.len() == 2, "two types, two GPUs: {all:?}");
    // Text of the user's that looks like what is read there.
    let forged = "x Nodes=node[1-2] GRES=gpu:2(IDX:0-1)";
    let argv = ["srun", "--mps", "-J", forged, "--gres=gpu:a:1", "true"];
    let done = cell.bed.spawn(&cell.user, &argv)?.wait(LIMIT)?;
    ensure!(
        !done.status.success() && done.stderr.contains("2 lists of them"),
        "a forged list is taken: {done:?}"
    );
    Ok(())
}

/// Slurm gives the job `/dev/nvidia1`, and CUDA would lead it to the other GPU: refused in one line that says so, and
/// nothing is done to either.
fn a_gpu_that_slurm_does_not_manage(cell: &Context) -> Result<()> {
    let node = &nodes(cell)?.nodes[0];
    let [unmanaged, _] = &node.uuids()[..] else {
        anyhow::bail!("two GPUs expected")
    };
    let without = gpus(cell, &["--gres=gpu:1"])?;
    ensure!(without == [[unmanaged.clone()]], "CUDA's own choice: {without:?}");
    let line = nodes(cell)?.client("");
    let done = start(cell, &cell.user, &["srun", "--mps", "--gres=gpu:1"], &line)?
        .wait(LIMIT)?
        .exits(1)?;
    ensure!(done.stdout.is_empty(), "the task ran: {}", done.stdout);
    for word in ["/dev/nvidia1", "/dev/nvidia0", "gres.conf"] {
        ensure!(
            done.stderr.contains(word),
            "'{word}' is not said: {}",
            done.stderr
        );
    }
    ensure!(
        node.modes().iter().all(|mode| mode == "default"),
        "{:?}",
        node.modes()
    );
    let said = check(cell)?;
    ensure!(
        said.starts_with("FAIL  ") && said.contains("gres.conf' line 1)") && said.lines().count() == 1,
        "{said}"
    );
    Ok(())
}

/// What slurm.conf grants the node, and a gres.conf.
const LISTS: [(&str, &str); 9] = [
    ("gpu:4", "Name=gpu File=/dev/nvidia[0-3]\n"),
    ("gpu:2", "Name=gpu File=/dev/nvidia[2-3,0-1]\n"),
    ("gpu:3", "Name=gpu File=/dev/nvidia3,/dev/nvidia[0-1]\n"),
    (
        "gpu:b:2,gpu:a:2",
        "Name=gpu Type=a File=/dev/nvidia[0-1]\nName=gpu Type=b File=/dev/nvidia[2-3]\n",
    ),
    (
        "gpu:a:2(S:0),gpu:b:1",
        "Name=gpu Type=b File=/dev/nvidia1\nName=gpu Type=A File=/dev/nvidia0\nName=gpu Type=a File=/dev/nvidia3\n",
    ),
    (
        "gpu:2",
        "NAME=gpu TYPE=b FILE=/dev/nvidia1\nName=gpu Type=a File=/dev/nvidia0\n",
    ),
    (
        "gpu:4",
        "NodeName=node[1-2] Name=gpu File=/dev/nvidia2\nNodeName=other Name=gpu File=/dev/nvidia3\nName=gpu File=\"/dev/nvidia[0-1]\" # last\n",
    ),
    (
        "gpu:2",
        "AutoDetect=off\nName=gpu \\\nFile=/dev/nvidia2\nInclude more.conf\n",
    ),
    ("gpu", "Name=gpu File=/dev/nvidia3\n"),
];

/// This host, where a device's minor number is the one in its name: the node's own `/dev` is not ours.
struct ByName;

impl Host for ByName {
    fn read(&self, path: &Path, most: usize) -> io::Result<Option<Vec<u8>>> {
        ThisHost.read(path, most)
    }
    fn configuration(&self, path: &Path, most: usize) -> io::Result<Option<Vec<u8>>> {
        ThisHost.configuration(path, most)
    }
    fn minor(&self, path: &Path) -> io::Result<u32> {
        let name = path.to_str().and_then(|path| path.strip_prefix("/dev/nvidia"));
        name.and_then(|number| number.parse().ok())
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
    fn executable(&self, path: &Path) -> bool {
        ThisHost.executable(path)
    }
    fn run(
        &self,
        program: &Path,
        arguments: &[&str],
        env: &[(&str, &str)],
        deadline: Duration,
    ) -> Result<Answer, String> {
        ThisHost.run(program, arguments, env, deadline)
    }
    fn name(&self) -> String {
        ThisHost.name()
    }
}

/// For many a gres.conf the list that we read is the one that `slurmd -G` prints, in its order.
fn the_list_is_slurmds_own(cell: &Context) -> Result<()> {
    let bed = &cell.bed;
    let conf = fs::read_to_string(bed.dir().join("etc/slurm.conf"))?;
    let slurmd = bed.daemon("node1").context("slurmd runs")?.to_string();
    for (number, (granted, gres)) in LISTS.iter().enumerate() {
        let dir = bed.dir().join(format!("list-{number}"));
        fs::create_dir(&dir)?;
        let file = dir.join("slurm.conf");
        fs::write(&file, conf.replace("Gres=gpu:4", &format!("Gres={granted}")))?;
        fs::write(
            dir.join("cgroup.conf"),
            "CgroupAutomount=no\nCgroupPlugin=cgroup/v1\nConstrainDevices=yes\n",
        )?;
        fs::write(dir.join("gres.conf"), gres)?;
        fs::write(dir.join("more.conf"), "Name=gpu File=/dev/nvidia0\n")?;
        let enter = [
            "nsenter", "--mount", "--target", &slurmd, "slurmd", "-G", "-N", "node1", "-f",
        ];
        let command = [&enter[..], &[file.to_str().context("a path of ours")?]].concat();
        let said = bed.root(&command)?.success()?;
        let theirs = files_of(&format!("{}{}", said.stdout, said.stderr));
        let ours = ours(&file, &theirs).with_context(|| format!("{granted} {gres}: slurmd {theirs:?}"))?;
        ensure!(ours == theirs, "{granted} {gres}: {ours:?}, slurmd {theirs:?}");
    }
    Ok(())
}

/// The files of a job with every place of the list, on a node with just these GPUs.
fn ours(conf: &Path, files: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let places: Vec<String> = (0..files.len()).map(|place| place.to_string()).collect();
    let (conf, places) = (conf.display().to_string(), places.join(","));
    let env = |name: &str| {
        let value = match name {
            "SLURM_CONF" => conf.as_str(),
            "SLURM_STEP_GPUS" | "CUDA_VISIBLE_DEVICES" => &places,
            "SLURMD_NODENAME" => "node1",
            "SLURM_JOB_ID" | "SLURM_JOB_UID" => "7",
            // For a job on a node with several types the controller is asked, which may have a job 7.
            "SLURM_STEP_ID" => "0",
            _ => return None,
        };
        Some(value.to_owned())
    };
    let input = Input {
        program: Program::Prologue,
        scheduler: None,
        arguments: &[],
        env: &env,
        given: CallOptions::default(),
        site: Site::default(),
        terminal: false,
    };
    let mut minors = files
        .iter()
        .map(|file| ByName.minor(file))
        .collect::<io::Result<Vec<_>>>()?;
    minors.sort_unstable();
    let gpu = |(index, minor): (u32, u32)| -> Result<Gpu> {
        Ok(Gpu {
            index,
            uuid: GpuUuid::parse(&format!("GPU-0000000{minor}"))?,
            name: "NVIDIA H200".to_owned(),
            memory_mib: Some(143_771),
            mode: ComputeMode::Default,
            mig: mpsd_core::gpu::Mig::Off,
            capability: (9, 0),
            minor: Some(minor),
            cpus: None,
        })
    };
    let inventory = Inventory {
        gpus: (0..).zip(minors).map(gpu).collect::<Result<_>>()?,
        driver: String::new(),
        migs: Vec::new(),
    };
    let submission = scheduler::read(&input, &ByName)?;
    let GpuSource::Numbered(numbers) = scheduler::devices(&submission, &input, &ByName)?.gpus else {
        anyhow::bail!("Slurm gives numbers");
    };
    let gpus = numbers.gpus(&inventory)?;
    Ok(gpus
        .iter()
        .filter_map(|gpu| gpu.minor)
        .map(|minor| format!("/dev/nvidia{minor}").into())
        .collect())
}

/// The files in `slurmd -G`'s lines, ranges spelled out.
fn files_of(said: &str) -> Vec<PathBuf> {
    let files = said
        .lines()
        .filter(|line| line.contains("Gres Name=gpu"))
        .filter_map(|line| {
            let (_, rest) = line.split_once("File=")?;
            rest.split(' ').next()
        });
    let mut all = Vec::new();
    for list in files {
        let mut inside = false;
        let parts = list.split(|c| {
            inside = (inside || c == '[') && c != ']';
            c == ',' && !inside
        });
        for part in parts {
            let Some((head, numbers)) = part.trim_end_matches(']').split_once('[') else {
                all.push(part.into());
                continue;
            };
            for range in numbers.split(',') {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let (first, last): (u32, u32) = (first.parse().unwrap_or(0), last.parse().unwrap_or(0));
                all.extend((first..=last).map(|number| PathBuf::from(format!("{head}{number}"))));
            }
        }
    }
    all
}
