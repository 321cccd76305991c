//! Real GPUs under lists that are partial or against the order of the bus. The same job without MPS
//! shows the right GPU. With MPS the job has that GPU, or is refused in a line that names both
//! device files.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::slurm::{Bed, Options, User, unified};

use crate::result::Section;
use crate::site::{self, Place, Run};
use crate::slurm::{self, Debs, tail};

const SRUN: Duration = Duration::from_secs(90);

struct Device {
    uuid: String,
    minor: u32,
}

const ASKED: [&str; 4] = [
    "--gres=gpu:a:1",
    "--gres=gpu:b:1",
    "--gres=gpu:c:1",
    "--gres=gpu:d:1",
];

/// One way to list two GPUs: a name, what slurm.conf grants, gres.conf, and what jobs ask for.
struct List {
    name: &'static str,
    granted: &'static str,
    gres: String,
    asked: &'static [&'static str],
}

pub fn run(section: &mut Section, run: &Run) -> Result<()> {
    let place = &run.place;
    let devices = devices()?;
    let [first, second, ..] = &devices[..] else {
        section.fact("left_out", "this machine has one GPU");
        return Ok(());
    };
    for device in [first, second] {
        section.fact(&format!("nvidia{}", device.minor), device.uuid.clone());
    }
    let file = |device: &Device| format!("File=/dev/nvidia{}", device.minor);
    let line =
        |(kind, device): &(&str, &Device)| format!("Name=gpu Type={kind} {}\n", file(device));
    let typed = |kinds: &[(&str, &Device)]| kinds.iter().map(line).collect::<String>();
    let mut lists = vec![
        List {
            name: "partial",
            granted: "gpu:1",
            gres: format!("Name=gpu {}\n", file(second)),
            asked: &["--gres=gpu:1"],
        },
        List {
            name: "reversed",
            granted: "gpu:b:1,gpu:a:1",
            gres: typed(&[("b", second), ("a", first)]),
            asked: &ASKED[..2],
        },
    ];
    if let [a, b, c, d, ..] = &devices[..] {
        lists.push(List {
            name: "shuffled",
            granted: "gpu:c:1,gpu:d:1,gpu:a:1,gpu:b:1",
            gres: typed(&[("c", c), ("d", d), ("a", a), ("b", b)]),
            asked: &ASKED,
        });
    }
    let _slurm = Debs::install(&run.package.join("debs"))?;
    for list in &lists {
        for constrain in [false, true] {
            under(section, place, list, constrain, &devices)?;
        }
    }
    Ok(())
}

fn devices() -> Result<Vec<Device>> {
    let text = site::smi(&["-q"])?;
    let values = |key: &str| {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let found = lines.filter(|(name, _)| name.trim() == key);
        let values = found.map(|(_, value)| value.trim().to_owned());
        values.collect::<Vec<_>>()
    };
    let (uuids, minors) = (values("GPU UUID"), values("Minor Number"));
    ensure!(
        uuids.len() == minors.len(),
        "nvidia-smi -q: {uuids:?}, {minors:?}"
    );
    let mut devices = Vec::new();
    for (uuid, minor) in uuids.into_iter().zip(minors) {
        let minor = minor.parse()?;
        devices.push(Device { uuid, minor });
    }
    Ok(devices)
}

fn options(list: &List, constrain: bool) -> Options {
    let mut options = Options {
        gres: Some(list.granted.to_owned()),
        gres_conf: Some(list.gres.clone()),
        ..slurm::options(Vec::new())
    };
    if constrain {
        let lines = ["ProctrackType=proctrack/cgroup", "TaskPlugin=task/cgroup"];
        options.slurm_lines = lines.map(str::to_owned).to_vec();
        options.cgroup_lines.push("ConstrainDevices=yes".into());
        if !unified() {
            let lines = ["CgroupMountpoint=/sys/fs/cgroup", "CgroupPlugin=cgroup/v1"];
            options.cgroup_lines.extend(lines.map(str::to_owned));
        }
    }
    options
}

fn under(
    section: &mut Section,
    place: &Place,
    list: &List,
    constrain: bool,
    devices: &[Device],
) -> Result<()> {
    let word = if constrain { "confined" } else { "free" };
    let name = format!("{} {word}", list.name);
    let bed = slurm::with_plugin(place, options(list, constrain))?;
    if let Err(error) = bed.start() {
        // Slurm's device cgroups need more than some containers give.
        ensure!(
            constrain,
            "{name}: Slurm did not come up: {error:#}\n{}",
            tail(&bed.log("node1"))
        );
        section.fact(&format!("{name}: left out"), format!("{error:#}"));
        return Ok(());
    }
    let user = User::named(&place.user.name)?;
    for asked in list.asked {
        let what = format!("{name} {asked}");
        let outcome = compare(section, place, &bed, &user, asked, &what, devices);
        if outcome.is_err() {
            section.fact(&format!("{what}: slurmd_log"), tail(&bed.log("node1")));
        }
        outcome?;
    }
    let forced = bed.end()?;
    section.none(format!("{name}: Slurm ended by itself"), &forced);
    Ok(())
}

fn compare(
    section: &mut Section,
    place: &Place,
    bed: &Bed,
    user: &User,
    asked: &str,
    what: &str,
    devices: &[Device],
) -> Result<()> {
    let probe = place.staged("mps-probe")?.display().to_string();
    // What the job gets: its variables, and the device files that it can open.
    let look = "echo $SLURM_STEP_GPUS $CUDA_VISIBLE_DEVICES; for f in /dev/nvidia[0-9]*; do (: <$f) 2>/dev/null && echo $f; done; true";
    let given = bed
        .srun(user, &[asked, "/bin/sh", "-c", look], SRUN)?
        .success()?;
    let given: Vec<&str> = given.stdout.split_whitespace().collect();
    section.fact(&format!("{what}: given"), given.join(" "));
    let without = bed
        .srun(user, &[asked, &probe, "--json"], SRUN)?
        .success()?;
    let without = uuids(&without.stdout)?;
    let job = bed.spawn(
        user,
        &["srun", asked, "--mps", &probe, "--json", "--hold", "4"],
    )?;
    let servers = servers_while(&job, devices)?;
    let done = job.wait(SRUN)?;
    if done.code == Some(0) {
        let with = uuids(&done.stdout)?;
        section.equal(format!("{what}: mps-probe, with MPS"), &with, &without);
        section.equal(
            format!("{what}: nvidia-smi, the server's GPU"),
            &servers,
            &without,
        );
        let is_under = done.stdout.contains("\"under_mps\":true");
        section.check(format!("{what}: under MPS"), is_under, done.stdout);
        return Ok(());
    }
    let said = done.stderr.contains("mps: ")
        && done.stderr.matches("GPU-").count() + done.stderr.matches("/dev/nvidia").count() >= 2;
    let name = format!("{what}: refused in a line that names both GPUs");
    section.check(name, said, done.stderr);
    Ok(())
}

/// The GPUs on which NVIDIA's own list shows an MPS server while the job runs.
fn servers_while(job: &tests::slurm::Client, devices: &[Device]) -> Result<BTreeSet<String>> {
    let fields = [
        "--query-compute-apps=gpu_uuid,process_name",
        "--format=csv,noheader",
    ];
    let end = Instant::now() + Duration::from_secs(20);
    let mut seen = BTreeSet::new();
    while seen.is_empty() && job.runs() && Instant::now() < end {
        let text = site::smi(&fields)?;
        let lines = text.lines();
        let servers = lines.filter(|line| line.contains("nvidia-cuda-mps-server"));
        let uuids = servers.filter_map(|line| line.split(',').next().map(str::trim));
        let ours = uuids.filter(|uuid| devices.iter().any(|device| device.uuid == *uuid));
        seen.extend(ours.map(str::to_owned));
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(seen)
}

fn uuids(stdout: &str) -> Result<BTreeSet<String>> {
    let line = stdout.lines().find(|line| line.starts_with('{'));
    let report: Value = serde_json::from_str(line.context("the probe wrote no report")?)?;
    let gpus = report["gpus"].as_array();
    let gpus = gpus.context("the probe's report has no GPUs")?.iter();
    let uuids = gpus.filter_map(|gpu| gpu["uuid"].as_str());
    Ok(uuids.map(str::to_owned).collect())
}
