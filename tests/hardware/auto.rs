//! Job scripts that know nothing of us, in a site's `auto` partition of a real Slurm, each beside
//! the same job on a node without our plugin: exit code, output and GPUs must be the same.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::tests::child;
use ::tests::double::look::{Process, processes};
use ::tests::scripts::batch::Place;
use ::tests::scripts::{Outcome, Script};
use ::tests::slurm::{Gpus, Options};
use anyhow::{Context as _, Result};

use crate::job;
use crate::runner::Scene;
use crate::site::{self, Run};
use crate::slurm::one_gpu;

macro_rules! case {
    ($name:literal, $under_mps:literal) => {
        (
            $name,
            include_str!(concat!("../scripts/", $name, ".sh")),
            $under_mps,
        )
    };
}

/// What runs, and how many of its programs `auto` gives MPS. That some have it shows that the
/// partition is one of `auto`.
const CASES: [(&str, &str, usize); 5] = [
    case!("plain-step", 4),
    case!("own-background", 0),
    case!("default-daemon", 0),
    case!("connections-32", 0),
    case!("background-56", 0),
];
const AUTO: &str = "[slurm]\nauto_partitions = [\"auto\"]\n";
/// Without us, and in `auto`: the node, and its partition.
const SIDES: [(&str, &str); 2] = [("node1", "main"), ("node2", "auto")];
/// 56 contexts take their time.
const ENDS: Duration = Duration::from_secs(120);
/// Where NVIDIA's daemon keeps its pipes if nobody says where.
const DEFAULT_PIPES: &str = "/tmp/nvidia-mps";

pub fn scripts(scene: &mut Scene<'_>) -> Result<()> {
    let bin = programs(scene.run)?;
    let had_pipes = Path::new(DEFAULT_PIPES).exists();
    // Read at each job.
    job::configure(&scene.run.place, AUTO)?;
    for (name, text, under_mps) in CASES {
        let script = Script::parse(name, text)?;
        let [without, auto] = SIDES.map(|side| one(scene, &bin, &script, side));
        compare(scene, &script, &without?, &auto?, under_mps)?;
        if !had_pipes {
            let _ = fs::remove_dir_all(DEFAULT_PIPES);
        }
    }
    Ok(())
}

/// Two nodes with the same GPU: one without the plugin, and one of a partition with `auto`.
pub fn two_nodes(run: &Run) -> Options {
    let [(plain, _), (node, partition)] = SIDES;
    Options {
        nodes: SIDES.len(),
        cpus: 8,
        gpus: Gpus::Real(Vec::new()),
        gres: Some("gpu:1".into()),
        gres_conf: Some(format!(
            "AutoDetect=off\nName=gpu File=/dev/nvidia{}\n",
            run.number
        )),
        // No number of a job is part of another number that a program writes.
        slurm_lines: vec!["FirstJobId=410000".into()],
        plain_nodes: vec![plain.into()],
        partition_lines: vec![format!(
            "PartitionName={partition} Nodes={node} MaxTime=10 State=UP"
        )],
        ..one_gpu(run)
    }
}

/// A directory with NVIDIA's daemon, and `cuda-app` as the scripts call it. A context on a real GPU
/// takes longer than on a double, so programs that should meet hold theirs longer.
fn programs(run: &Run) -> Result<PathBuf> {
    let bin = run.place.dir.join("scripts");
    fs::create_dir(&bin)?;
    let control = "nvidia-cuda-mps-control";
    symlink(site::program(control)?, bin.join(control))?;
    let libraries =
        std::env::var("LD_LIBRARY_PATH").map(|path| format!("export LD_LIBRARY_PATH='{path}'\n"));
    let text = format!(
        "#!/bin/sh\n{}echo \"CUDA_VISIBLE_DEVICES is '$CUDA_VISIBLE_DEVICES'\"\n\
         exec {} --json --deadline-s 90 --hold $((${{2%.*}} * 4 + 1))\n",
        libraries.unwrap_or_default(),
        run.place.staged("mps-probe")?.display()
    );
    let app = bin.join("cuda-app");
    fs::write(&app, text).with_context(|| format!("'{}'", app.display()))?;
    fs::set_permissions(&app, fs::Permissions::from_mode(0o755))?;
    Ok(bin)
}

fn one(
    scene: &Scene<'_>,
    bin: &Path,
    script: &Script,
    (node, partition): (&str, &str),
) -> Result<Outcome> {
    let (bed, user) = scene.bed()?;
    let place = Place {
        bed: &bed,
        user,
        node: node.into(),
        bin: bin.into(),
        gpus: vec![scene.run.gpu().uuid.clone()],
        plain: node == SIDES[0].0,
        words: format!("-p {partition} --gres=gpu:1"),
    };
    let outcome = place.submit(script)?.outcome(ENDS)?;
    // A daemon that a script told to quit ends a moment later, and the next script is not to meet
    // it.
    let is_daemon = |process: &Process| process.name.starts_with("nvidia-cuda-mps");
    let none_runs = || !processes().iter().any(is_daemon);
    child::until(
        Duration::from_secs(15),
        Duration::from_millis(100),
        none_runs,
    )?;
    Ok(outcome)
}

fn compare(
    scene: &mut Scene<'_>,
    script: &Script,
    without: &Outcome,
    auto: &Outcome,
    under_mps: usize,
) -> Result<()> {
    let (name, section) = (&script.name, &mut *scene.section);
    section.fact(&format!("{name}_without_us"), without.story());
    let same = script.check_auto(without, auto);
    let seen = match &same {
        Ok(()) => format!(
            "exit {}, {} s for {} s",
            auto.code, auto.seconds, without.seconds
        ),
        Err(differs) => format!("{differs:#}\nwithout us: {}", without.story()),
    };
    section.check(format!("{name}: as without us"), same.is_ok(), seen);
    let more = auto.under_mps()?.saturating_sub(without.under_mps()?);
    section.equal(
        format!("{name}: programs that 'auto' gave MPS"),
        &more,
        &under_mps,
    );
    Ok(())
}
