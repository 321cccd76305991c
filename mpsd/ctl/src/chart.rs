//! A job's clients and GPUs over its time, a character a bucket.

use mpsd::job::report_text::time;
use mpsd_core::record::RecordGpu;
use mpsd_core::usage::{BUCKETS, GpuUsage, Usage};

const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// `_` for none, a level for each begun eighth of `top`, and a blank if it was not measured.
fn bar(values: impl Iterator<Item = Option<u64>>, top: u64) -> String {
    let mark = |value: Option<u64>| match value {
        None => ' ',
        Some(0) => '_',
        Some(value) => {
            let eighth = value.saturating_mul(8).div_ceil(top.max(1)).clamp(1, 8);
            LEVELS[usize::try_from(eighth).unwrap_or(8) - 1]
        }
    };
    let bar: String = values.take(BUCKETS).map(mark).collect();
    bar.trim_end().to_owned()
}

pub fn lines(usage: &Usage, gpus: &[RecordGpu]) -> Vec<String> {
    let top = usage.clients.iter().copied().max().unwrap_or(0);
    if top == 0 {
        return Vec::new();
    }
    let line = |name: &str, value: &str, bar: &str| {
        let label = format!("    {name:<7}{value:>6}");
        format!("{label:<18}{bar}")
    };
    let clients = bar(usage.clients.iter().map(|clients| Some(*clients)), top);
    let mut lines = vec![line("clients", &top.to_string(), &clients)];
    for gpu in gpus {
        let Some((busy, mean)) = usage.of(&gpu.uuid).and_then(busy) else {
            continue;
        };
        let busy = bar(busy.iter().map(|percent| percent.map(u64::from)), 100);
        let (name, mean) = (format!("GPU {}", gpu.index), format!("{mean} %"));
        lines.push(line(&name, &mean, &busy));
    }
    let (width, end) = (usage.clients.len().min(BUCKETS), time(usage.length_ms()));
    let axis = format!("0{end:>0$}", width.saturating_sub(1).max(end.len() + 1));
    lines.push(line("time", "", &axis));
    lines
}

fn busy(gpu: &GpuUsage) -> Option<(&[Option<u8>], u8)> {
    Some((&gpu.busy, gpu.busy_percent?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpsd_core::testing::{record_gpu, uuid};

    fn usage() -> (Usage, Vec<RecordGpu>) {
        let busy = (0..60).map(|n| (n != 30).then_some((n * 100 / 59) as u8));
        let gpu = GpuUsage {
            busy: busy.collect(),
            busy_percent: Some(50),
            samples: 400,
            ..GpuUsage::new(uuid(0))
        };
        let usage = Usage {
            began: 1_700_000_000,
            step_ms: 250,
            clients: [vec![1; 20], vec![4; 30], vec![0; 10]].concat(),
            gpus: vec![gpu],
        };
        (usage, vec![record_gpu(0)])
    }

    #[test]
    fn a_chart_fits_eighty_columns() {
        let (usage, gpus) = usage();
        assert_eq!(
            lines(&usage, &gpus).join("\n"),
            "    clients     4 ▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂██████████████████████████████__________
    GPU 0    50 % _▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂▃▃▃▃▃▃▃▄▄▄▄▄▄▄ ▅▅▅▅▅▅▅▆▆▆▆▆▆▆▇▇▇▇▇▇▇████████
    time          0                                                       15 s"
        );
        for line in lines(&usage, &gpus) {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn the_words_of_a_user_make_no_long_and_no_empty_chart() {
        let (mut usage, gpus) = usage();
        usage.clients = vec![u64::MAX; 5000];
        usage.gpus[0].busy = vec![Some(255); 5000];
        usage.step_ms = u64::MAX;
        usage.gpus[0].busy_percent = Some(255);
        let check = |usage: &Usage| {
            let chart = lines(usage, &gpus);
            assert_eq!(chart.len(), 3, "{chart:?}");
            for line in chart {
                let is_short = line.chars().count() <= 100;
                assert!(is_short && !line.contains(char::is_control), "{line:?}");
            }
        };
        check(&usage);
        usage.clients = vec![u64::MAX, 1];
        usage.gpus[0].busy = vec![Some(255), None];
        check(&usage);
        assert!(lines(&Usage::default(), &gpus).is_empty());
    }
}
