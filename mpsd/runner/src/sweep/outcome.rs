//! The result of a sweep: a table, JSON, and advice.

use super::configuration::{Configuration, label};
use super::measure::Measured;
use indicatif::HumanCount;
use mpsd_core::text::count;
use serde::Serialize;
use std::fmt::Write as _;

/// This part of the best is as good, if it takes fewer clients or no share.
const AS_GOOD: f64 = 0.98;
/// A smaller gain is none: runs of the same thing differ as much.
const NO_GAIN: f64 = 1.05;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Row {
    pub clients: u32,
    pub mps: bool,
    /// The share that was asked for: `none`, `auto`, `100/n`, `25`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<String>,
    /// The threads of each client, percent; `None`: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    /// Median of the runs, all clients together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput: Option<f64>,
    pub runs: Vec<f64>,
    /// The 50th and the 99th percentile of all clients' times, of each run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub percentiles: Vec<[f64; 2]>,
    /// A client's mean at the peak, MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    pub unit: String,
    /// Of the times, if the figures are rates of requests that told theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_unit: Option<String>,
    pub gpus: u32,
    /// Memory of the smallest of them, MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_memory_mib: Option<u64>,
    /// MPS clients that each of them takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_clients: Option<u32>,
    /// The advice is for PBS, else for Slurm.
    pub pbs: bool,
    /// In the order in which they were measured.
    pub rows: Vec<Row>,
    pub notes: Vec<String>,
}

impl Row {
    pub(super) fn of(what: Configuration, on_a_gpu: u32) -> Self {
        let percent = what.share.and_then(|share| share.of(on_a_gpu));
        Self {
            clients: what.clients,
            mps: what.share.is_some(),
            threads: what.share.map(|share| share.to_string()),
            percent: percent.map(|percent| f64::from(percent.tenths()) / 10.0),
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, measured: &Measured) {
        self.runs.push(measured.throughput);
        self.memory_mib = self.memory_mib.max(measured.memory_mib);
        self.percentiles.extend(measured.percentiles);
        self.throughput = median(self.runs.iter().copied());
    }

    fn p99(&self) -> Option<f64> {
        median(self.percentiles.iter().map(|[_, p99]| *p99))
    }

    fn label(&self) -> String {
        label(self.threads.as_ref())
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let lower = sorted.get(sorted.len().checked_sub(1)? / 2)?;
    Some((lower + sorted[sorted.len() / 2]) / 2.0)
}

/// `1,156` or `3.42`: as many digits as a person reads.
fn figure(value: f64) -> String {
    match value {
        0.0 | 100.0.. => HumanCount(value.round_ties_even() as u64).to_string(),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

impl Outcome {
    fn labels(&self) -> Vec<String> {
        let mut labels: Vec<String> = Vec::new();
        for label in self.rows.iter().map(Row::label) {
            if !labels.contains(&label) {
                labels.push(label);
            }
        }
        labels
    }

    fn counts(&self) -> Vec<u32> {
        let mut counts: Vec<u32> = self.rows.iter().map(|row| row.clients).collect();
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    fn row(&self, clients: u32, label: &str) -> Option<&Row> {
        let mut rows = self.rows.iter();
        rows.find(|row| row.clients == clients && row.label() == label)
    }

    pub(super) fn text(&self) -> String {
        let with_memory = self.rows.iter().any(|row| row.memory_mib.is_some());
        let unit = match self.time_unit {
            Some(_) => format!("requests {}", self.unit),
            None => self.unit.clone(),
        };
        let title = format!("{unit}, all clients together");
        let mut out = self.table(&title, with_memory, |row| row.throughput);
        if let Some(unit) = &self.time_unit {
            out += &self.table(&format!("99th percentile, {unit}"), false, Row::p99);
        }
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        out + &self.advice() + "\n"
    }

    fn table(&self, title: &str, with_memory: bool, cell: impl Fn(&Row) -> Option<f64>) -> String {
        let mut out = format!("{title}\nclients");
        let labels = self.labels();
        for label in &labels {
            let _ = write!(out, "  {label:>11}");
        }
        out.push_str(["\n", "  memory of each\n"][usize::from(with_memory)]);
        let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
        for clients in self.counts() {
            let _ = write!(out, "{clients:>7}");
            for label in &labels {
                let width = label.len().max(11);
                let value = self.row(clients, label).and_then(&cell);
                let _ = write!(out, "  {:>width$}", or_dash(value.map(figure)));
            }
            if with_memory {
                let rows = self.rows.iter().filter(|row| row.clients == clients);
                let memory = rows.filter_map(|row| row.memory_mib).max();
                let memory = or_dash(memory.map(|mib| format!("{mib} MiB")));
                let _ = write!(out, "  {memory:>14}");
            }
            out.push('\n');
        }
        out
    }

    /// The best of the configurations under MPS. One with fewer clients, or without a share, wins
    /// if it is as good.
    fn best(&self) -> Option<&Row> {
        let under_mps = || self.rows.iter().filter(|row| row.mps);
        let all = under_mps().filter_map(|row| row.throughput);
        let least = all.fold(0.0, f64::max) * AS_GOOD;
        let good = under_mps().filter(|row| row.throughput >= Some(least));
        good.min_by_key(|row| (row.clients, row.threads.as_deref() != Some("none")))
    }

    pub(super) fn advice(&self) -> String {
        if !self.rows.iter().any(|row| row.mps) {
            let ask = if self.pbs { "-A MPS=true" } else { "--mps" };
            return format!("this job has no MPS: submit it with {ask} to see what that brings");
        }
        let Some((best, rate)) = self.best().and_then(|best| Some((best, best.throughput?))) else {
            return "no client came to a figure under MPS: see the notes".to_owned();
        };
        if self.counts() == [1] {
            return "one client alone: --clients 1,2,4,8 shows what MPS brings".to_owned();
        }
        let rate_of = |clients, mps| {
            let rows = self.rows.iter();
            let mut rows = rows.filter(|row| row.clients == clients && row.mps == mps);
            rows.find_map(|row| row.throughput)
        };
        // One on each GPU, if that was measured.
        let mut one = self.counts().into_iter();
        let one = one.find(|clients| *clients == self.gpus).unwrap_or(1);
        let bare = rate_of(one, false);
        let single = bare.or(rate_of(one, true));
        if best.clients <= one || single.is_some_and(|single| rate < single * NO_GAIN) {
            return "MPS brings this program nothing here: run one client at a time, or fewer on each GPU"
                .to_owned();
        }
        let clients = count(best.clients.into(), "client");
        let mut line = format!("{clients}, {}", self.request(best));
        let under = bare.map_or(" under MPS", |_| "");
        let same = format!("the same {} without MPS", best.clients);
        let gains = [
            (single, format!("one after another{under}")),
            (rate_of(best.clients, false), same),
        ];
        let mut separator = ": ";
        for (other, what) in gains {
            if let Some(other) = other.filter(|other| *other > 0.0) {
                let _ = write!(line, "{separator}{:.1} × {what}", rate / other);
                separator = ", ";
            }
        }
        let gpus = u64::from(self.gpus.max(1));
        let memory = best.memory_mib.filter(|mib| *mib > 0);
        let allows = self.gpu_memory_mib.zip(memory);
        let allows = allows.map(|(all, each)| all / each * gpus);
        let most = self.most_clients.map(|most| u64::from(most) * gpus);
        if let Some(allows) = allows {
            let _ = write!(line, "; memory allows {allows}");
            if let Some(most) = most.filter(|most| allows > *most) {
                let _ = write!(line, ", MPS {most}");
            }
        }
        let mut alone = self.rows.iter().filter(|row| row.clients == one);
        let waits = alone.find_map(Row::p99).zip(best.p99());
        if let (Some((alone, p99)), Some(unit)) = (waits, &self.time_unit) {
            let [all, few] = [p99, alone].map(figure);
            let _ = write!(line, "; 99th percentile {all} {unit}, {few} with {one}");
            if p99 > alone * NO_GAIN {
                line.push_str(": if latency matters, fewer clients or a share");
            }
        }
        let mut bounds = [allows, most].into_iter().flatten();
        let has_room = bounds.all(|most| most > u64::from(best.clients));
        if self.counts().last() == Some(&best.clients) && has_room {
            let twice = best.clients.saturating_mul(2);
            let _ = write!(line, "; more may be better still (--clients {twice})");
        }
        line
    }

    fn request(&self, row: &Row) -> String {
        let (ask, threads) = match self.pbs {
            true => ("MPS=true", ",MPS_THREADS="),
            false => ("--mps", " --mps-threads="),
        };
        match row.threads.as_deref() {
            None | Some("none") => ask.to_owned(),
            Some("auto") => format!("{ask}{threads}auto"),
            Some(_) => format!("{ask}{threads}{}", row.percent.unwrap_or(100.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_and_the_advice_tell_how_long_requests_take() {
        let mut told = outcome(&[(1, None, 1314.0), ONE, (8, Some("none"), 2599.0)]);
        (told.unit, told.time_unit) = ("a second".to_owned(), Some("ms".to_owned()));
        for (row, p99) in told.rows.iter_mut().zip([6.1, 6.0, 9.04]) {
            row.percentiles = vec![[1.0, p99]];
        }
        let text = told.text();
        for line in [
            "requests a second, all clients together\n",
            "99th percentile, ms\nclients  without MPS          MPS\n      1         6.10         6.00\n      8            -         9.04\n",
            "; 99th percentile 9.04 ms, 6.10 with 1: if latency matters, fewer clients or a share",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    /// Rows from `(clients, threads, throughput)`; no threads: without MPS.
    fn outcome(rows: &[(u32, Option<&str>, f64)]) -> Outcome {
        let row = |(clients, threads, throughput): &(u32, Option<&str>, f64)| {
            let (clients, share) = (*clients, threads.map(|threads| threads.parse().unwrap()));
            let mut row = Row::of(Configuration { clients, share }, clients);
            row.add(&Measured {
                throughput: *throughput,
                memory_mib: Some(7800),
                percentiles: None,
            });
            row
        };
        Outcome {
            unit: "ns/day".to_owned(),
            time_unit: None,
            gpus: 1,
            gpu_memory_mib: Some(143_771),
            most_clients: Some(48),
            pbs: false,
            rows: rows.iter().map(row).collect(),
            notes: Vec::new(),
        }
    }

    const ONE: (u32, Option<&str>, f64) = (1, Some("none"), 10.0);

    #[test]
    fn advice_is_one_line() {
        let issue = [
            (1, None, 1706.0),
            (1, Some("none"), 1667.0),
            (8, None, 1156.0),
            (8, Some("none"), 3723.0),
            (8, Some("auto"), 4590.0),
            (16, Some("auto"), 4600.0),
        ];
        let no_gain = [(1, None, 100.0), (4, Some("none"), 103.0)];
        let shared = [ONE, (4, Some("none"), 20.0), (4, Some("100/n"), 30.0)];
        let without = [(1, None, 1.0), (2, None, 1.0)];
        // Two percent are no reason for more clients, or for a share.
        let two = [(2, Some("none"), 29.8), (2, Some("25"), 30.0)];
        let close = [ONE, two[0], two[1], (4, Some("none"), 30.1)];
        let gain = "8 clients, --mps --mps-threads=auto: 2.7 × one after another, 4.0 × the same 8 without MPS; memory allows 18";
        let share = "4 clients, --mps --mps-threads=25: 3.0 × one after another under MPS; memory allows 18; more may be better still (--clients 8)";
        for (rows, line) in [
            (&issue[..], gain),
            (&shared, share),
            (&no_gain, "MPS brings this program nothing here"),
            (&[ONE, (1, Some("25"), 6.0)], "one client alone"),
            (&without, "this job has no MPS: submit it with --mps"),
            (&close, "2 clients, --mps: "),
        ] {
            let advice = outcome(rows).advice();
            assert!(advice.starts_with(line), "{advice}");
        }
        let mut full = outcome(&[ONE, (2, Some("none"), 20.0)]);
        full.most_clients = Some(2);
        let line = full.advice();
        assert!(line.ends_with("; memory allows 18, MPS 2"), "{line}");
        let mut failed = outcome(&[ONE]);
        failed.rows[0].throughput = None;
        let none = "no client came to a figure under MPS: see the notes";
        assert_eq!(failed.advice(), none);
        let table = outcome(&issue).text();
        let row = "\n     16            -            -        4,600        7800 MiB\n";
        assert!(table.contains(row), "{table}");
    }

    #[test]
    fn medians_and_figures_are_readable() {
        let mut row = Row::default();
        let medians = [5.0, 1.0, 3.0, 4.0].map(|throughput| {
            row.add(&Measured {
                throughput,
                ..Measured::default()
            });
            row.throughput
        });
        assert_eq!(medians[2..], [Some(3.0), Some(3.5)]);
        let shown = [0.256, 12.34, 999.6, 4590.4, 1_234_567.0].map(figure);
        assert_eq!(shown, ["0.26", "12.3", "1,000", "4,590", "1,234,567"]);
    }
}
