//! The page's table of several GPUs of one host, from what `cargo xtask hardware many` measured.

use anyhow::{Context as _, Result};
use toml::Table;

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
