//! OpenMM on several GPUs through a real Slurm: what one GPU does with eight simulations, and what two and all GPUs of the host do
//! with eight on each, by what the user says of binding and by how the program chooses its GPU.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use ::tests::slurm::{Bed, User};
use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::debs::Debs;
use crate::job;
use crate::look::{self, Look};
use crate::openmm::{Dynamics, SIMULATION};
use crate::result::Section;
use crate::site::{self, Gpu, Place};
use crate::slurm::{self, Slice, tail};

/// Simulations on each GPU.
const EACH: usize = 8;
/// What several GPUs must reach of as many times one.
const REACH: f64 = 0.97;

/// One `srun`.
struct Case {
    gpus: usize,
    /// How the program chooses its GPU.
    program: &'static str,
    /// What the user says beside `--mps --mps-threads=auto`.
    flag: Option<&'static str>,
}

const FIRST: &str = "takes the first GPU";
const BY_RANK: &str = "takes the GPU of its rank";
const BY_BLOCK: &str = "takes the GPU of its block of ranks";

/// The cases for a host with `gpus` GPUs. One GPU is measured first and last.
fn cases(gpus: usize) -> Vec<Case> {
    let case = |gpus, program, flag| Case { gpus, program, flag };
    let one = || case(1, FIRST, None);
    let mut cases = vec![one()];
    for (program, flag) in [
        (FIRST, None),
        (FIRST, Some("--mps-bind=none")),
        (BY_RANK, None),
        (BY_BLOCK, None),
        (FIRST, Some("--mps-bind=block")),
        (FIRST, Some("--mps=per-gpu")),
    ] {
        cases.push(case(2, program, flag));
    }
    if gpus > 2 {
        cases.push(case(gpus, FIRST, None));
        cases.push(case(gpus, FIRST, Some("--mps-bind=none")));
    }
    cases.push(one());
    cases
}

/// What one `srun` brought.
struct Row {
    case: Case,
    /// Simulated ns a day, all together.
    sum: f64,
    /// Simulations by GPU.
    on: BTreeMap<String, usize>,
}

/// The whole experiment.
pub fn run(
    section: &mut Section,
    place: &Place,
    package: &Path,
    out: Option<&Path>,
    debs: &Path,
) -> Result<()> {
    let gpus = site::gpus()?;
    if gpus.len() < 2 {
        section.fact("left_out", "this machine has one GPU");
        return Ok(());
    }
    let before = Look::take(&place.run)?;
    let home = place.user_dir("several")?;
    let Some(dynamics) = Dynamics::prepare(section, place, package, &home)? else {
        return Ok(());
    };
    let brought = Debs::install(debs)?;
    let slice = Slice::make();
    let mut options = slurm::options((0..gpus.len() as u32).collect());
    options.cpus = std::thread::available_parallelism()?.get() as u32;
    let bed = slurm::with_plugin(place, options)?;
    slurm::start(section, &bed)?;
    let user = User::named(&place.user.name)?;
    let rows: Result<Vec<Row>> = cases(gpus.len())
        .into_iter()
        .map(|case| one(section, &bed, &user, &dynamics, &gpus, case))
        .collect();
    if rows.is_err() {
        section.fact("slurmd_log", tail(&bed.log("node1")));
    }
    let rows = rows?;
    let forced = bed.end()?;
    section.check("Slurm ended by itself", forced.is_empty(), format!("{forced:?}"));
    drop((bed, brought, slice));
    let figures = judge(section, &rows)?;
    if let Some(out) = out {
        fs::create_dir_all(out)?;
        let title = format!("OpenMM on several GPUs, {}", gpus[0].name);
        let told = json!({"title": title, "simulations_each": EACH, "rows": figures});
        fs::write(out.join("several.json"), format!("{told:#}\n"))?;
    }
    fs::remove_dir_all(&home)?;
    let kept: Vec<_> = gpus
        .iter()
        .flat_map(|gpu| job::kept(&place.run, &gpu.uuid))
        .collect();
    look::compare(section, &before, &place.run, &kept, Duration::from_secs(5))
}

fn one(
    section: &mut Section,
    bed: &Bed,
    user: &User,
    dynamics: &Dynamics,
    gpus: &[Gpu],
    case: Case,
) -> Result<Row> {
    let count = EACH * case.gpus;
    let (gres, tasks) = (format!("--gres=gpu:{}", case.gpus), format!("-n{count}"));
    let mut words = vec![&*gres, &tasks, "--mps-threads=auto"];
    words.extend((case.flag != Some("--mps=per-gpu")).then_some("--mps"));
    words.extend(case.flag);
    let variables: Vec<String> = (dynamics.env.iter().filter(|(name, _)| *name != "PATH"))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    words.push("/usr/bin/env");
    words.extend(variables.iter().map(String::as_str));
    words.extend(dynamics.command.iter().map(String::as_str));
    words.extend(match case.program {
        BY_RANK => Some("--by-rank"),
        BY_BLOCK => Some("--by-block"),
        _ => None,
    });
    eprintln!("hardware: {}", name(&case));
    let ran = bed.srun(user, &words, SIMULATION)?.success()?;
    let (mut sum, mut on) = (0.0, BTreeMap::new());
    let mut late = 0;
    for line in ran.stdout.lines().filter(|line| line.contains(" ns/day")) {
        let figure = line
            .split_whitespace()
            .next()
            .and_then(|word| word.parse::<f64>().ok());
        sum += figure.with_context(|| format!("no figure in '{line}'"))?;
        late += usize::from(line.contains("(late)"));
        let (_, listed) = line
            .rsplit_once(" on ")
            .with_context(|| format!("no GPU in '{line}'"))?;
        *on.entry(device(listed, gpus)).or_default() += 1;
    }
    let seen: usize = on.values().sum();
    section.equal(format!("{}: simulations", name(&case)), &seen, &count);
    section.equal(format!("{}: that came late", name(&case)), &late, &0);
    Ok(Row { case, sum, on })
}

/// A GPU by its entry in `CUDA_VISIBLE_DEVICES`. The daemon's own numbers are in the order of the bus, as nvidia-smi's are.
fn device(listed: &str, gpus: &[Gpu]) -> String {
    let number = listed.trim().parse::<usize>().ok();
    match number.and_then(|number| gpus.get(number)) {
        Some(gpu) => gpu.uuid.clone(),
        None => listed.trim().to_owned(),
    }
}

fn name(case: &Case) -> String {
    let flag = case.flag.map(|flag| format!(" {flag}")).unwrap_or_default();
    format!(
        "{} GPUs, --mps --mps-threads=auto{flag}, {}",
        case.gpus, case.program
    )
}

/// Each row against as many times one GPU; what the user gets who says nothing of binding must reach [`REACH`] of it.
fn judge(section: &mut Section, rows: &[Row]) -> Result<Vec<Value>> {
    let ones: Vec<f64> = (rows.iter().filter(|row| row.case.gpus == 1))
        .map(|row| row.sum)
        .collect();
    let one = ones.iter().sum::<f64>() / ones.len().max(1) as f64;
    anyhow::ensure!(one > 0.0, "one GPU has no figure");
    let mut figures = Vec::new();
    for row in rows {
        let (name, gpus) = (name(&row.case), row.case.gpus);
        let part = row.sum / one / gpus as f64;
        let each: Vec<usize> = row.on.values().copied().collect();
        let seen = format!(
            "{:.0} ns/day, {part:.3} of {gpus} times one GPU; on each {each:?}",
            row.sum
        );
        section.fact(&name, seen.clone());
        if row.case.flag.is_none() && gpus > 1 {
            section.check(
                format!("{name}: {REACH} of {gpus} times one GPU"),
                part >= REACH,
                seen,
            );
            section.equal(format!("{name}: on each GPU"), &each, &vec![EACH; gpus]);
        }
        figures.push(json!({
            "gpus": gpus,
            "program": row.case.program,
            "flag": row.case.flag,
            "ns_per_day": (row.sum * 10.0).round() / 10.0,
            "of_one_gpu_each": (part * 1000.0).round() / 1000.0,
            "simulations_on_each": each,
        }));
    }
    Ok(figures)
}
