//! What a user waits for: `srun --mps true` against `srun true` on the real GPU, in turn.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;
use tests::slurm::{Bed, User};

use crate::child;
use crate::debs::Debs;
use crate::result::{Section, Spread, times};
use crate::site::{Gpu, Place};
use crate::slurm::{self, Slice};

/// Longest that one `srun` may take, and the epilog behind it.
const SRUN: Duration = Duration::from_secs(60);
/// Longest that the programs which measure the plugin on simulated nodes may take.
const BENCH: Duration = Duration::from_secs(300);

/// `count` pairs on one GPU; each side goes first in every second pair.
pub fn run(
    section: &mut Section,
    place: &Place,
    gpu: &Gpu,
    minor: u32,
    count: usize,
    debs: &Path,
) -> Result<()> {
    let _slurm = Debs::install(debs)?;
    let _slice = Slice::make();
    let bed = slurm::with_plugin(place, slurm::options(vec![minor]))?;
    slurm::start(section, &bed)?;
    let user = User::named(&place.user.name)?;
    let (mut plain, mut mps) = (Vec::new(), Vec::new());
    for number in 0..=count {
        let mut sides: [(&[&str], &mut Vec<f64>); 2] = [
            (&["--gres=gpu:1", "true"], &mut plain),
            (&["--gres=gpu:1", "--mps", "true"], &mut mps),
        ];
        if number % 2 == 1 {
            sides.reverse();
        }
        for (words, took) in sides {
            let finished = bed.srun(&user, words, SRUN)?.success()?;
            // The first brings programs and libraries into the page cache.
            if number > 0 {
                took.push(child::ms(finished.wall));
            }
            idle(&bed)?;
        }
    }
    record(section, &plain, &mps);
    of_reports(section, place)?;
    section.fact("gpu", gpu.name.as_str());
    let forced = bed.end()?;
    section.check("Slurm ended by itself", forced.is_empty(), format!("{forced:?}"));
    Ok(())
}

/// `srun` returns before the epilog has run, and the next job would wait for that.
fn idle(bed: &Bed) -> Result<()> {
    let end = Instant::now() + SRUN;
    while bed.node_state("node1")?.state != "IDLE" {
        anyhow::ensure!(
            Instant::now() < end,
            "the node is not idle: {:?}",
            bed.node_state("node1")?
        );
        child::pause(Duration::from_millis(20))?;
    }
    Ok(())
}

fn record(section: &mut Section, plain: &[f64], mps: &[f64]) {
    let more: Vec<f64> = mps.iter().zip(plain).map(|(mps, plain)| mps - plain).collect();
    for (name, values) in [("srun_true", plain), ("srun_mps_true", mps), ("more", &more[..])] {
        if let Some(spread) = Spread::of(values) {
            section.fact(&format!("{name}_ms"), times(values));
            section.fact(&format!("{name}_ms_spread"), spread.text());
        }
    }
}

/// What root wrote down of the same jobs: how long until MPS was ready, and until it was gone.
fn of_reports(section: &mut Section, place: &Place) -> Result<()> {
    let reports = place.dir.join("state/reports");
    let (mut ready, mut gone) = (Vec::new(), Vec::new());
    for entry in
        std::fs::read_dir(&reports).with_context(|| format!("no reports in '{}'", reports.display()))?
    {
        let path = entry?.path();
        if path.extension().is_none_or(|kind| kind != "json") {
            continue;
        }
        let report: Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
        if report["scheduler"] != "slurm" {
            continue;
        }
        ready.extend(report["ready_ms"].as_f64());
        gone.extend(report["teardown_ms"].as_f64());
    }
    for (name, values) in [
        ("reported_ready_ms_spread", ready),
        ("reported_teardown_ms_spread", gone),
    ] {
        if let Some(spread) = Spread::of(&values) {
            section.fact(name, spread.text());
        }
    }
    Ok(())
}

/// What the plugin costs a job that did not ask, against no plugin and against one that does nothing, on simulated nodes of the same
/// machine: `bench-srun`, whose result stands beside ours.
pub fn plugin(
    section: &mut Section,
    package: &Path,
    debs: &Path,
    out: Option<&Path>,
    pairs: usize,
) -> Result<()> {
    let _slurm = Debs::install(debs)?;
    let _slice = Slice::make();
    let file = match out {
        Some(out) => out.join("bench-srun.json"),
        None => package.join("bench-srun.json"),
    };
    let mut command = Command::new(package.join("bench/bench-srun"));
    command.args(["--pairs", &pairs.to_string(), "--out"]).arg(&file);
    let ran = child::run(&mut command, "", BENCH)?.success()?;
    // All but where the file lies.
    let lines: Vec<&str> = ran
        .stdout
        .lines()
        .filter(|line| !line.starts_with("plugin "))
        .collect();
    section.fact("said", lines.join("\n"));
    section.check("measured", file.is_file(), "bench-srun.json");
    Ok(())
}
