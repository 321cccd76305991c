//! The page's tables of several GPUs of one host, from what `cargo xtask hardware many` and `several` measured.

use anyhow::{Context as _, Result};
use serde_json::Value;
use toml::Table;

use super::plot::Bars;

/// What a user says who wants the order of the GPUs as it is.
const UNBOUND: &str = "--mps-bind=none";

/// One `srun` of OpenMM.
struct Row<'a> {
    gpus: u32,
    program: &'a str,
    flag: Option<&'a str>,
    /// Simulated ns a day.
    sum: f64,
    /// Of as many times one GPU.
    part: f64,
}

fn rows(result: &Value) -> Result<Vec<Row<'_>>> {
    let rows = result["rows"].as_array().context("no rows")?;
    let row = |row| -> Option<Row<'_>> {
        let row: &Value = row;
        Some(Row {
            gpus: u32::try_from(row["gpus"].as_u64()?).ok()?,
            program: row["program"].as_str()?,
            flag: row["flag"].as_str(),
            sum: row["ns_per_day"].as_f64()?,
            part: row["of_one_gpu_each"].as_f64()?,
        })
    };
    rows.iter()
        .map(|one| row(one).with_context(|| format!("not a whole row: {one}")))
        .collect()
}

/// The bars of the plot: a program that takes the first GPU that it sees, with the order as it was and as the default has it.
pub fn bars(result: &Value) -> Result<Bars> {
    let rows = rows(result)?;
    let plain = rows.iter().filter(|row| row.program == "takes the first GPU");
    let mut bars: Vec<(u32, Vec<u32>)> = Vec::new();
    for row in plain {
        let place = match row.flag {
            None => 1,
            Some(UNBOUND) => 0,
            Some(_) => continue,
        };
        if !bars.iter().any(|(gpus, _)| *gpus == row.gpus) {
            bars.push((row.gpus, vec![row.sum.round() as u32; 2]));
        }
        let bar = bars.iter_mut().find(|(gpus, _)| *gpus == row.gpus);
        if let Some((_, values)) = bar {
            values[place] = row.sum.round() as u32;
        }
    }
    Ok((vec!["--mps --mps-bind=none", "--mps"], bars))
}

/// What the most GPUs of the result do for who says nothing of binding.
pub fn most(result: &Value) -> Result<String> {
    let each = result["simulations_each"].as_u64().context("no simulations")?;
    let rows = rows(result)?;
    let unasked = rows.iter().filter(|row| row.flag.is_none());
    let most = unasked.max_by_key(|row| row.gpus).context("no rows")?;
    let all = each * u64::from(most.gpus);
    Ok(format!(
        "{all} simulations on {} GPUs do {:.2} times what {each} do on one, with the default binding.\n",
        most.gpus,
        most.part * f64::from(most.gpus)
    ))
}

/// The table of OpenMM; `name` is the file of the result.
pub fn openmm(name: &str, result: &Value) -> Result<String> {
    let title = result["title"].as_str().context("no title")?;
    let each = result["simulations_each"].as_u64().context("no simulations")?;
    let mut lines = format!(
        "{title}, {each} simulations a GPU, `srun --gres=gpu:N --mps --mps-threads=auto` (`{name}`):\n\n\
         | GPUs | the program | also said | ns/day | of as many times one GPU |\n|---|---|---|---|---|\n"
    );
    for row in rows(result)? {
        let flag = row.flag.map(|flag| format!("`{flag}`")).unwrap_or_default();
        lines.push_str(&format!(
            "| {} | {} | {flag} | {} | {:.2} |\n",
            row.gpus,
            row.program,
            super::gain::with_commas(row.sum),
            row.part
        ));
    }
    lines.push_str("\n![Simulated ns a day on one and several GPUs](several.svg)\n");
    Ok(lines)
}

/// The block: `many` is the section of the result file `name`.
pub fn block(name: &str, many: &Table) -> Result<String> {
    let of = |key: &str| many.get(key).with_context(|| format!("'{name}' has no '{key}'"));
    let text = |key: &str| of(key)?.as_str().with_context(|| format!("'{key}' is no text"));
    let ratio = |key: &str| {
        of(key)?
            .as_float()
            .with_context(|| format!("'{key}' is no number"))
    };
    let median = |key: &str| -> Result<&str> {
        let words = text(key)?.split(' ').nth(1);
        let whole = words.and_then(|number| number.split('.').next());
        whole.with_context(|| format!("no median: '{key}'"))
    };
    let gpus = of("gpus")?.as_integer().context("no number of GPUs")?;
    let mut lines = format!(
        "{gpus} GPUs of one host, a job on each (`{name}`); the floor: NVIDIA's daemon and server by the shortest possible means\n\n\
         | | one job alone | the last of {gpus} at once | times | the floor, alone | the last of {gpus} | times |\n\
         |---|---|---|---|---|---|---|\n"
    );
    for (what, program) in [("begin", "mps-prologue"), ("end", "mps-epilogue")] {
        let ours = [
            median(&format!("{what}_alone_ms_spread"))?,
            median(&format!("{what}_last_of_all_ms_spread"))?,
        ];
        let floor = [
            median(&format!("{what}_floor_alone_ms_spread"))?,
            median(&format!("{what}_floor_last_of_all_ms_spread"))?,
        ];
        lines.push_str(&format!(
            "| `{program}` | {} ms | {} ms | {:.1} | {} ms | {} ms | {:.1} |\n",
            ours[0],
            ours[1],
            ratio(&format!("{what}_last_of_all_by_one_alone"))?,
            floor[0],
            floor[1],
            ratio(&format!("{what}_floor_last_of_all_by_one_alone"))?,
        ));
    }
    lines.push_str(&format!(
        "\nNVIDIA's driver lets servers that start or end at once take turns, so jobs that begin together wait for one another.\n\
         Clients of small kernels on all of them do {} times what as many on each do on one GPU where `--mps-bind=block` spreads them,\n\
         and {} times where each takes the first GPU that it sees.\n",
        text("bound: times one GPU")?,
        text("unbound: times one GPU")?,
    ));
    Ok(lines)
}
