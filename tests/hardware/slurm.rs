//! A real Slurm beside the real GPU: `srun --mps` → plugin → prologue → NVIDIA's daemon → CUDA clients.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use tests::slurm::{Bed, Gpus, Options, User, unified};

use crate::clients::{self, Limits};
use crate::debs::Debs;
use crate::job;
use crate::look::{self, Look};
use crate::probe::CLIENTS;
use crate::result::Section;
use crate::site::{Gpu, Place};

/// Longest that one `srun` may take.
const SRUN: Duration = Duration::from_secs(90);

/// How often the job runs: the first one also brings the programs into the page cache.
const RUNS: usize = 3;

/// The whole chain, as an ordinary user.
pub fn run(
    section: &mut Section,
    place: &Place,
    gpu: &Gpu,
    minor: u32,
    limits: &Limits,
    debs: &Path,
) -> Result<()> {
    let before = Look::take(&place.run)?;
    let slurm = Debs::install(debs)?;
    let slice = Slice::make();
    section.fact("files_brought", slurm.count() as i64);
    let bed = with_plugin(place, options(vec![minor]))?;
    start(section, &bed)?;
    let user = User::named(&place.user.name)?;
    let outcome = (0..RUNS).try_for_each(|number| one(section, place, &bed, &user, limits, number));
    if outcome.is_err() {
        section.fact("slurmd_log", tail(&bed.log("node1")));
    }
    outcome?;
    // srun returns before the epilog has run: the node is COMPLETING until then.
    let idle = std::time::Instant::now() + Duration::from_secs(20);
    while bed.node_state("node1")?.state != "IDLE" && std::time::Instant::now() < idle {
        std::thread::sleep(Duration::from_millis(100));
    }
    let state = bed.node_state("node1")?;
    section.check(
        "the node is idle and not drained",
        state.state == "IDLE",
        format!("{state:?}"),
    );
    let left = bed.left_behind();
    section.check("nothing left of the jobs", left.is_empty(), format!("{left:?}"));
    let forced = bed.end()?;
    section.check("Slurm ended by itself", forced.is_empty(), format!("{forced:?}"));
    drop(bed);
    drop(slurm);
    drop(slice);
    look::compare(
        section,
        &before,
        &place.run,
        &job::kept(&place.run, &gpu.uuid),
        Duration::from_secs(5),
    )
}

/// Whether Slurm comes up here at all and gives a job its GPU: no plugin, no MPS.
pub fn alone(section: &mut Section, place: &Place, minor: u32, debs: &Path) -> Result<()> {
    let slurm = Debs::install(debs)?;
    let _slice = Slice::make();
    section.fact("files_brought", slurm.count() as i64);
    let bed = Bed::create(options(vec![minor]))?;
    start(section, &bed)?;
    let probe = place.staged("mps-probe")?.display().to_string();
    let user = User::named(&place.user.name)?;
    let finished = bed.srun(&user, &["--gres=gpu:1", "-n2", &probe, "--json"], SRUN)?;
    section.check(
        "srun without MPS",
        finished.status.success(),
        format!("{}{}", finished.stdout, finished.stderr),
    );
    let forced = bed.end()?;
    section.check("Slurm ended by itself", forced.is_empty(), format!("{forced:?}"));
    Ok(())
}

pub fn start(section: &mut Section, bed: &Bed) -> Result<()> {
    let begin = std::time::Instant::now();
    let up = bed.start();
    if up.is_err() {
        section.fact("slurmd_log", tail(&bed.log("node1")));
        section.fact("slurmd_output", tail(&bed.log("node1.out")));
    }
    up.with_context(|| format!("Slurm did not come up:\n{}", bed.situation()))?;
    section.fact("slurm_up_ms", crate::child::ms(begin.elapsed()));
    let version = bed.root(&["scontrol", "--version"])?.stdout;
    section.fact("version", version.trim());
    Ok(())
}

pub fn options(minors: Vec<u32>) -> Options {
    Options {
        nodes: 1,
        cpus: CLIENTS as u32,
        gpus: Gpus::Real(minors),
        ..Options::default()
    }
}

/// `system.slice`, where Slurm's groups go and systemd has made none; removed again if it is ours.
pub struct Slice(bool);

const SLICE: &str = "/sys/fs/cgroup/system.slice";

impl Slice {
    pub fn make() -> Self {
        Self(unified() && std::fs::create_dir(SLICE).is_ok())
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        if self.0 {
            remove_groups(Path::new(SLICE));
        }
    }
}

/// Slurm leaves its own empty groups behind when it ends.
fn remove_groups(at: &Path) {
    for entry in std::fs::read_dir(at).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_groups(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(at);
}

pub fn with_plugin(place: &Place, options: Options) -> Result<Bed> {
    let config = job::config(place)?;
    let mut bed = Bed::create(options)?;
    let options = bed.options_mut();
    options.plugin = Some(place.staged("spank_mps.so")?);
    options.plugin_arguments = vec![
        format!("config={}", config.display()),
        format!("prologue={}", place.staged("mps-prologue")?.display()),
        format!("epilogue={}", place.staged("mps-epilogue")?.display()),
    ];
    Ok(bed)
}

fn one(
    section: &mut Section,
    place: &Place,
    bed: &Bed,
    user: &User,
    limits: &Limits,
    number: usize,
) -> Result<()> {
    let probe = place.staged("mps-probe")?.display().to_string();
    let tasks = format!("-n{CLIENTS}");
    let mut words = vec![
        "--gres=gpu:1",
        "--mps",
        "--mps-threads=25",
        "--mps-mem=4G",
        &tasks,
        &probe,
    ];
    let options = limits.probe_options();
    words.extend(options.iter().map(String::as_str));
    let finished = bed.srun(user, &words, SRUN)?;
    section.fact(&format!("srun_{number}_ms"), crate::child::ms(finished.wall));
    let story = format!("{}\n{}{}", finished.command, finished.stdout, finished.stderr);
    let good = finished.status.success();
    section.check(
        format!("srun {number}"),
        good,
        if good {
            finished.command.clone()
        } else {
            story.clone()
        },
    );
    let clients = clients::from_lines(&finished.stdout, finished.status.code());
    section.check(
        format!("srun {number}: a report of each task"),
        clients.len() == CLIENTS,
        clients.len().to_string(),
    );
    clients::judge(section, &clients, limits);
    Ok(())
}

pub fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
