//! What a case does beyond the steps of the table.

use std::process::Command;

use ::tests::child;
use anyhow::Result;

use crate::clients::{self, CLIENTS};
use crate::runner::{PROGRAM, Scene};
use crate::site;

/// The most clients of a GPU with driver 580.
pub const MOST: usize = 48;

/// The same job by `srun`. The first of its runs also brings the programs into the page cache.
pub fn by_srun(scene: &mut Scene<'_>) -> Result<()> {
    const RUNS: usize = 3;
    let (run, (bed, user)) = (scene.run, scene.bed()?);
    let probe = run.place.staged("mps-probe")?.display().to_string();
    let line = format!("--gres=gpu:1 --mps --mps-threads=25 --mps-mem=4G -n{CLIENTS} {probe}");
    let line = format!("{line} {}", clients::probe_options(run));
    let words: Vec<&str> = line.split(' ').collect();
    for number in 0..RUNS {
        let ran = bed.srun(&user, &words, PROGRAM)?;
        scene.fact(&format!("srun_{number}_ms"), ran.ms());
        scene.section.good(format!("srun {number}"), &ran);
        let clients = clients::from_lines(&ran.stdout, ran.code);
        let name = format!("srun {number}: a report of each task");
        scene.section.equal(name, &clients.len(), &CLIENTS);
        clients::judge(scene.section, &clients, run);
    }
    Ok(())
}

/// The contract suite against NVIDIA's control daemon, with the same tests as against the double:
/// the result of each test.
pub fn contract(scene: &mut Scene<'_>) -> Result<()> {
    let place = &scene.run.place;
    let mut command = Command::new(place.staged("contract")?);
    command.current_dir("/").env("MPS_SUBJECT", "nvidia");
    command.args(["--test-threads=1", "--nocapture"]);
    if let Ok(control) = site::program("nvidia-cuda-mps-control") {
        command.env("MPS_CONTROL", control);
    }
    command.env("MPS_PROBE", place.bin("mps-probe"));
    command.env("MPS_LOAD", place.bin("cuda-load"));
    command.env("MPS_USER", &place.user.name);
    let ran = child::run(&mut command, "", PROGRAM * 7)?;
    let mut lines = ran.stdout.lines();
    let summary = lines.rfind(|line| line.starts_with("test result:"));
    let summary = summary.unwrap_or("no summary");
    let section = &mut *scene.section;
    section.fact("summary", summary);
    section.fact("seconds", (ran.wall.as_secs_f64() * 10.0).round() / 10.0);
    section.fact("output", ran.said());
    let good = ran.code == Some(0) && summary.contains(": ok.");
    section.check("contract suite with MPS_SUBJECT=nvidia", good, summary);
    Ok(())
}
