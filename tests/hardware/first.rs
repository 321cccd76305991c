//! What a user waits for: from `srun` to the end of the last rank's first kernel, and to the end of
//! `srun`. With `--mps` and without it, in turn on the same Slurm.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::tests::samples::{in_turn, median, rounded};
use ::tests::slurm::{Bed, User};
use anyhow::{Context, Result, ensure};
use runner::sweep::plot::{self, Bar};
use serde_json::Value;
use toml::Table;

use crate::result::{Section, list, spread};
use crate::site::Run;
use crate::{job, slurm};

/// Longest time for one `srun`, and for the epilog after it.
const SRUN: Duration = Duration::from_secs(60);
/// The first kernel with MPS may take this many times one without.
const LIMIT: f64 = 1.0;
/// How much pairs of the same command differ.
const NOISE: f64 = 0.03;

/// Ranks on GPUs, compared with and without MPS.
pub struct Row {
    gpus: usize,
    ranks: usize,
    /// What waits for the server: the tasks, or the prolog.
    wait: &'static str,
    /// It has this part of the run's pairs.
    part: usize,
}

const fn row(gpus: usize, ranks: usize, wait: &'static str, part: usize) -> Row {
    Row {
        gpus,
        ranks,
        wait,
        part,
    }
}

/// One rank on one GPU.
pub const ONE: Row = row(1, 1, "task", 1);

const ROWS: [Row; 9] = [
    ONE,
    row(1, 2, "task", 2),
    row(1, 8, "task", 1),
    row(1, 16, "task", 4),
    row(1, 1, "prolog", 4),
    row(1, 8, "prolog", 4),
    row(2, 2, "task", 4),
    row(2, 8, "task", 4),
    row(2, 16, "task", 4),
];

/// From `srun` to the end of the last first kernel, and to its own end, milliseconds.
pub type Times = [f64; 2];

pub fn run(section: &mut Section, run: &Run) -> Result<()> {
    let gpus = run.gpus.len().min(2);
    let mut options = slurm::options((0..gpus as u32).collect());
    options.cpus = 16;
    let rows = slurm::on_bed(section, run, options, |section, bed, user| {
        let rows = ROWS.iter().filter(|row| row.gpus <= gpus);
        rows.map(|row| measure(section, run, bed, user, row))
            .collect::<Result<Vec<Table>>>()
    })?;
    section.fact("rows", rows);
    run.keep("first-kernel.svg", &picture(&section.facts)?)
}

fn measure(section: &mut Section, run: &Run, bed: &Bed, user: &User, row: &Row) -> Result<Table> {
    let waits = format!("[slurm]\nwait = \"{}\"\n", row.wait);
    job::configure(&run.place, &waits)?;
    let pairs = run.pairs.div_ceil(row.part).max(2);
    let times = in_turn(&["", "--mps"], pairs, |flag, _| {
        one(run, bed, user, row, flag)
    })?;
    let mut table = Table::new();
    for (key, value) in [("gpus", row.gpus), ("ranks", row.ranks), ("pairs", pairs)] {
        table.insert(key.into(), (value as i64).into());
    }
    table.insert("wait".into(), row.wait.into());
    for (part, name) in ["first_kernel", "srun"].into_iter().enumerate() {
        let of = |side: usize| {
            times[side]
                .iter()
                .map(|one| one[part])
                .collect::<Vec<f64>>()
        };
        let (plain, mps) = (of(0), of(1));
        let ratio = rounded(median(&mps) / median(&plain));
        table.insert(format!("{name}_ratio"), ratio.into());
        for (side, values) in [("", &plain), ("_mps", &mps)] {
            table.insert(format!("{name}{side}_ms"), rounded(median(values)).into());
            table.insert(format!("{name}{side}_all"), list(values));
            table.insert(format!("{name}{side}_spread"), spread(values).into());
        }
        if name == "first_kernel" && row.wait == "task" {
            let said = format!(
                "{}: the first kernel with --mps is not later ({} % are noise)",
                name_of(row.ranks, row.gpus),
                NOISE * 100.0
            );
            section.check(said, ratio <= LIMIT + NOISE, ratio.to_string());
        }
    }
    eprintln!(
        "hardware: {}, wait = {}: {} pairs, first kernel {}, srun {}",
        name_of(row.ranks, row.gpus),
        row.wait,
        pairs,
        table["first_kernel_ratio"],
        table["srun_ratio"]
    );
    Ok(table)
}

pub fn one(run: &Run, bed: &Bed, user: &User, row: &Row, flag: &str) -> Result<Times> {
    let load = run.place.staged("cuda-load")?.display().to_string();
    let (gres, tasks) = (
        format!("--gres=gpu:{}", row.gpus),
        format!("-n{}", row.ranks),
    );
    let mut words = vec![&*gres, &*tasks];
    words.extend([flag].into_iter().filter(|flag| !flag.is_empty()));
    words.extend([&*load, "--by-rank", "--after", "0", "--seconds", "0"]);
    let began = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    let ran = bed.srun(user, &words, SRUN)?.success()?;
    // `srun` returns before the epilog has run, and the next job would wait for the epilog.
    bed.wait_idle(SRUN)?;
    let ends = ends(&ran.stdout);
    ensure!(
        ends.len() == row.ranks,
        "{} clients: {}",
        ends.len(),
        ran.story()
    );
    let last = ends.into_iter().fold(began, f64::max);
    Ok([rounded((last - began) * 1e3), ran.ms()])
}

/// When the first kernel of each client of `cuda-load` had ended, seconds since 1970.
pub fn ends(said: &str) -> Vec<f64> {
    let clients = said.lines().filter_map(|line| {
        let client: Value = serde_json::from_str(line).ok()?;
        client["first_at"].as_f64()
    });
    clients.collect()
}

fn name_of(ranks: usize, gpus: usize) -> String {
    let several = |count| if count == 1 { "" } else { "s" };
    format!(
        "{ranks} rank{} on {gpus} GPU{}",
        several(ranks),
        several(gpus)
    )
}

/// The bars of the first kernels, from the section of a result.
fn picture(section: &Table) -> Result<String> {
    let rows = section.get("rows").and_then(|rows| rows.as_array());
    let mut bars = Vec::new();
    for row in rows.context("no rows")? {
        let number = |key: &str| {
            row.get(key)
                .and_then(|value| value.as_integer())
                .unwrap_or(0) as usize
        };
        let time = |key: &str| row.get(key).and_then(|value| value.as_float());
        if row.get("wait").and_then(|wait| wait.as_str()) != Some("task") {
            continue;
        }
        let name = name_of(number("ranks"), number("gpus"));
        let sides = [
            ("first_kernel_ms", "without MPS", plot::WITHOUT),
            ("first_kernel_mps_ms", "--mps", plot::WITH),
        ];
        for (key, side, kind) in sides {
            let to = time(key).with_context(|| format!("no '{key}'"))?;
            bars.push(Bar {
                name: format!("{name}, {side}"),
                from: 0.0,
                to,
                said: format!("{to:.0} ms"),
                kind,
                begins: kind == plot::WITHOUT,
            });
        }
    }
    let titles = ["From srun to the end of the first kernel of the last rank"];
    Ok(plot::bars(&titles, &bars, plot::LARGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_has_a_bar_for_each_side_of_each_row() {
        let text = "[[rows]]\ngpus = 1\nranks = 8\nwait = \"task\"\nfirst_kernel_ms = 1257.0\nfirst_kernel_mps_ms = 1173.4\n\
                    [[rows]]\ngpus = 1\nranks = 8\nwait = \"prolog\"\n";
        let svg = picture(&toml::from_str(text).unwrap()).unwrap();
        let said = [
            "8 ranks on 1 GPU, without MPS",
            "1257 ms",
            "8 ranks on 1 GPU, --mps",
            "1173 ms",
        ];
        assert!(said.iter().all(|words| svg.contains(words)), "{svg}");
        assert_eq!(svg.matches("<rect x=").count(), 2);
    }
}
