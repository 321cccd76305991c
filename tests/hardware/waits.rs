//! What a user waits for: `srun --mps true` against `srun true` on the real GPU, in turn.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use tests::slurm::User;

use crate::child;
use crate::debs::Debs;
use crate::result::Section;
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
            // `srun` returns before the epilog has run, and the next job would wait for that.
            bed.wait_idle(SRUN)?;
        }
    }
    let more: Vec<f64> = mps.iter().zip(&plain).map(|(mps, plain)| mps - plain).collect();
    section.series("srun_true_ms", &plain);
    section.series("srun_mps_true_ms", &mps);
    section.series("more_ms", &more);
    of_reports(section, place)?;
    section.fact("gpu", gpu.name.as_str());
    let forced = bed.end()?;
    section.check("Slurm ended by itself", forced.is_empty(), format!("{forced:?}"));
    Ok(())
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
    section.series("reported_ready_ms", &ready);
    section.series("reported_teardown_ms", &gone);
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
