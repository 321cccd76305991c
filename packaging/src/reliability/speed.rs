//! Where the time of a begin and of an end goes, from what `cargo xtask hardware` measured: the floor and ours, in turn.

use anyhow::{Context as _, Result};
use toml::Table;

/// A line of the table: what, the steps of the log that it takes in, and why ours takes longer.
type Line = (&'static str, &'static [&'static str], &'static str);

const BEGIN: [Line; 4] = [
    (
        "until NVIDIA's daemon runs",
        &["daemon"],
        "NVML's start and its first look at each GPU ([measured](facts/mps-control.md#times)), since the plan rests on what it says; then journal, cgroup and `mpsd`",
    ),
    ("until its server is asked for", &["asked"], ""),
    ("until that is ready", &["server", "ready"], "NVIDIA's own"),
    (
        "until the prologue has ended",
        &["last_line", "return"],
        "root's proof of both processes, journal and record",
    ),
];

const END: [Line; 3] = [
    (
        "until `quit` is said",
        &["first_session", "quit"],
        "the programs' start, and a session that asks for clients",
    ),
    (
        "until server and daemon have ended",
        &["last_line"],
        "NVIDIA's own; NVML starts beside it, and the driver serves one after the other",
    ),
    (
        "until the epilogue has ended",
        &["return"],
        "the look at the GPU, compute mode, files, report",
    ),
];

/// The tables.
pub fn block(name: &str, result: &Table) -> Result<String> {
    let times = section(result, "times")?;
    let waits = section(result, "waits")?;
    let pairs = times["pairs"].as_integer().context("no pairs")?;
    let [floor, prologue, quit, epilogue] = ["floor_ms", "prologue_ms", "floor_quit_ms", "epilogue_ms"]
        .map(|name| median(times, &format!("{name}_spread")));
    let (floor, prologue, quit, epilogue) = (floor?, prologue?, quit?, epilogue?);
    let [plain, mps, more] = ["srun_true_ms_spread", "srun_mps_true_ms_spread", "more_ms_spread"]
        .map(|spread| median(waits, spread));
    Ok(format!(
        "Medians of {pairs} interleaved pairs, by the stamps in NVIDIA's own log (`{name}`); the floor is NVIDIA's daemon and server by the \
         shortest possible means, and their `quit`. Medians of parts do not add up to the median of the whole.\n\n\
         | begin | the floor, ms | ours, ms | what is more |\n|---|---|---|---|\n{}\
         | **in all** | {floor:.0} | {prologue:.0} | {:.2} of it |\n\n\
         | end | the floor, ms | ours, ms | what is more |\n|---|---|---|---|\n{}\
         | **in all** | {quit:.0} | {epilogue:.0} | {:.2} of it |\n\n\
         Under a real Slurm on the same GPU `srun --mps true` takes {:.0} ms and `srun true` {:.0}: {:.0} ms more, of the {floor:.0} that NVIDIA's \
         daemon and server take by themselves. Slurm's own start hides the rest.\n",
        lines(times, "begin", &BEGIN)?,
        prologue / floor,
        lines(times, "end", &END)?,
        epilogue / quit,
        mps?,
        plain?,
        more?,
    ))
}

fn lines(times: &Table, what: &str, lines: &[Line]) -> Result<String> {
    let sum = |side: &str, steps: &[&str]| -> Result<f64> {
        let of = |step: &&str| {
            let found = times.get(&format!("{side}_step_{step}_ms"));
            // The server's last line may come at the moment of the one before.
            found.map_or(Some(0.0), toml::Value::as_float)
        };
        let all: Option<Vec<f64>> = steps.iter().map(of).collect();
        Ok(all.context("a step is no number")?.iter().sum())
    };
    let line = |(name, steps, more): &Line| -> Result<String> {
        let (floor, ours) = (sum(&format!("floor_{what}"), steps)?, sum(what, steps)?);
        Ok(format!("| {name} | {floor:.0} | {ours:.0} | {more} |\n"))
    };
    lines.iter().map(line).collect()
}

fn section<'a>(result: &'a Table, name: &str) -> Result<&'a Table> {
    let found = result.get(name).and_then(toml::Value::as_table);
    found.with_context(|| format!("no section '{name}'"))
}

fn median(section: &Table, spread: &str) -> Result<f64> {
    let found = section.get(spread).and_then(toml::Value::as_str);
    median_of(found.with_context(|| format!("no '{spread}'"))?)
}

/// The number in `median 264.91 ms, quartiles …`.
pub(super) fn median_of(spread: &str) -> Result<f64> {
    let number = spread
        .strip_prefix("median ")
        .and_then(|rest| rest.split(' ').next());
    number
        .and_then(|number| number.parse().ok())
        .with_context(|| format!("no median: '{spread}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_stands_beside_the_floors() {
        let result: Table = toml::from_str(
            r#"[times]
pairs = 20
floor_ms_spread = "median 270.0 ms, quartiles 1 to 2"
prologue_ms_spread = "median 297.0 ms, quartiles 1 to 2"
floor_quit_ms_spread = "median 90.0 ms, quartiles 1 to 2"
epilogue_ms_spread = "median 117.0 ms, quartiles 1 to 2"
floor_begin_step_daemon_ms = 17.0
begin_step_daemon_ms = 40.0
begin_step_server_ms = 3.0
begin_step_ready_ms = 250.0
begin_step_last_line_ms = 1.0
begin_step_return_ms = 4.0
[waits]
srun_true_ms_spread = "median 140.0 ms, quartiles 1 to 2"
srun_mps_true_ms_spread = "median 350.0 ms, quartiles 1 to 2"
more_ms_spread = "median 210.0 ms, quartiles 1 to 2"
"#,
        )
        .unwrap();
        let block = block("x.toml", &result).unwrap();
        for part in [
            "| until NVIDIA's daemon runs | 17 | 40 |",
            "| until that is ready | 0 | 253 |",
            "| until the prologue has ended | 0 | 5 |",
            "| **in all** | 270 | 297 | 1.10 of it |",
            "| **in all** | 90 | 117 | 1.30 of it |",
            "takes 350 ms and `srun true` 140: 210 ms more",
        ] {
            assert!(block.contains(part), "{part}\n{block}");
        }
    }
}
