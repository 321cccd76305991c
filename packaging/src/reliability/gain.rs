//! README's table of what MPS brings, from what `mpsctl sweep` found on a GPU.

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::plot::Bars;

/// Clients at once.
const CLIENTS: [u64; 5] = [1, 2, 4, 8, 16];
/// The columns of a sweep: under MPS or not, and the share.
const COLUMNS: [(bool, &str); 3] = [(false, ""), (true, "none"), (true, "auto")];

/// The block: `openmm` and `kernels` are sweeps of 1 to 16 clients, `alone` of one OpenMM under several shares; each with the
/// name of its file.
pub fn block(openmm: (&str, &Value), kernels: (&str, &Value), alone: &Value) -> Result<String> {
    let title = openmm.1["title"].as_str().context("no title")?;
    let gpu = title.split_once(", ").map_or(title, |(_, gpu)| gpu);
    let mut text = format!(
        "`mpsctl sweep` on {gpu}, all clients together\n\
         (`{}`,\n`{}`):\n\n\
         | clients | OpenMM, ns/day, without MPS | `--mps` | `--mps-threads=auto` | small kernels a second, without MPS | `--mps` | \
         `--mps-threads=auto` |\n|---|---|---|---|---|---|---|\n",
        openmm.0, kernels.0
    );
    for clients in CLIENTS {
        let cells = [openmm.1, kernels.1]
            .into_iter()
            .flat_map(|sweep| COLUMNS.map(|column| (sweep, column)));
        let cells: Result<Vec<String>> = cells
            .map(|(sweep, (mps, share))| Ok(with_commas(figure(sweep, clients, mps, share)?)))
            .collect();
        text.push_str(&format!("| {clients} | {} |\n", cells?.join(" | ")));
    }
    let one = |share| Ok::<_, anyhow::Error>(with_commas(figure(alone, 1, true, share)?));
    let advice = openmm.1["advice"].as_str().context("no advice")?;
    text.push_str(&format!(
        "\nIts advice for OpenMM: `{advice}`.\nWhat a share costs a client that is alone: {} ns/day with all threads, {} with a quarter\n\
         (`auto` of eight), {} with an eighth (of sixteen).\n",
        one("none")?,
        one("25")?,
        one("12.5")?,
    ));
    Ok(text)
}

/// The bars of the front page's plot, from the sweep of OpenMM.
pub fn bars(openmm: &Value) -> Result<Bars> {
    let mut groups = Vec::new();
    for clients in CLIENTS {
        let bars = COLUMNS.map(|(mps, share)| Ok(figure(openmm, clients, mps, share)?.round() as u32));
        let bars: Result<Vec<u32>> = bars.into_iter().collect();
        groups.push((clients as u32, bars?));
    }
    Ok((vec!["without MPS", "--mps", "--mps --mps-threads=auto"], groups))
}

/// The table of PyTorch's inference: the file, and the sweep.
pub fn inference(name: &str, sweep: &Value) -> Result<String> {
    let title = sweep["title"].as_str().context("no title")?;
    let mut text = format!(
        "{title}: pictures a second of a small network, one at a time, all clients together (`{name}`):\n\n\
         | clients | without MPS | `--mps` | `--mps-threads=auto` |\n|---|---|---|---|\n"
    );
    for clients in [1, 8] {
        let cells = COLUMNS.map(|(mps, share)| Ok(with_commas(figure(sweep, clients, mps, share)?)));
        let cells: Result<Vec<String>> = cells.into_iter().collect();
        text.push_str(&format!("| {clients} | {} |\n", cells?.join(" | ")));
    }
    Ok(text)
}

fn figure(sweep: &Value, clients: u64, mps: bool, share: &str) -> Result<f64> {
    let rows = sweep["rows"].as_array().context("no rows")?;
    let row = rows.iter().find(|row| {
        let threads = row["threads"].as_str().unwrap_or_default();
        row["clients"] == clients && row["mps"] == mps && threads == share
    });
    row.and_then(|row| row["throughput"].as_f64())
        .with_context(|| format!("no figure of {clients} clients, MPS {mps}, share '{share}'"))
}

/// A figure without its fraction, in groups of three.
pub fn with_commas(figure: f64) -> String {
    let digits = format!("{figure:.0}");
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
