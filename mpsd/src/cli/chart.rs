//! A job's clients and GPUs over its time, a character a bucket: bars on a terminal that shows UTF-8, else plain ASCII.

use mpsd_core::record::RecordGpu;
use mpsd_core::usage::{BUCKETS, GpuUsage, Usage};

/// Before the bars; with them a line has 78 columns.
const LABEL: usize = 18;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Bars,
    Ascii,
}

impl Style {
    /// By the locale, as other programs on the terminal have it.
    pub fn of_terminal() -> Self {
        Self::of(|name| std::env::var(name).ok())
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .find_map(set)
            .unwrap_or_default();
        let locale = locale.to_ascii_lowercase();
        match locale.ends_with("utf-8") || locale.ends_with("utf8") {
            true => Self::Bars,
            false => Self::Ascii,
        }
    }

    fn levels(self) -> [char; 8] {
        match self {
            Self::Bars => ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
            Self::Ascii => ['.', ':', '-', '=', '+', '*', '#', '@'],
        }
    }

    /// `_` for none, a level for each begun eighth of `top`, and a blank if it was not measured.
    fn bar(self, values: impl Iterator<Item = Option<u64>>, top: u64) -> String {
        let mark = |value: Option<u64>| match value {
            None => ' ',
            Some(0) => '_',
            Some(value) => {
                let eighth = value.saturating_mul(8).div_ceil(top.max(1)).clamp(1, 8);
                self.levels()[usize::try_from(eighth).unwrap_or(8) - 1]
            }
        };
        let bar: String = values.take(BUCKETS).map(mark).collect();
        bar.trim_end().to_owned()
    }
}

/// The chart; empty if there is nothing to show.
pub fn lines(usage: &Usage, gpus: &[RecordGpu], style: Style) -> Vec<String> {
    let top = usage.clients.iter().copied().max().unwrap_or(0);
    if top == 0 {
        return Vec::new();
    }
    let line = |name: &str, value: &str, bar: &str| {
        let label = format!("    {name:<7}{value:>6}");
        format!("{label:<LABEL$}{bar}")
    };
    let clients = style.bar(usage.clients.iter().map(|clients| Some(*clients)), top);
    let mut lines = vec![line("clients", &top.to_string(), &clients)];
    for gpu in gpus {
        let Some((busy, mean)) = usage.of(&gpu.uuid).and_then(busy) else {
            continue;
        };
        let bar = style.bar(busy.iter().map(|percent| percent.map(u64::from)), 100);
        lines.push(line(&format!("GPU {}", gpu.index), &format!("{mean} %"), &bar));
    }
    let (width, end) = (usage.clients.len().min(BUCKETS), time(usage.length_ms()));
    let axis = format!("0{end:>0$}", width.saturating_sub(1).max(end.len() + 1));
    lines.push(line("time", "", &axis));
    lines
}

fn busy(gpu: &GpuUsage) -> Option<(&[Option<u8>], u8)> {
    Some((&gpu.busy, gpu.busy_percent?))
}

/// `45 s`, `12 min`, `3.5 h`.
pub fn time(ms: u64) -> String {
    match ms / 1000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{}.{} h", seconds / 3600, seconds % 3600 / 360),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpsd_core::GpuUuid;

    fn usage() -> (Usage, Vec<RecordGpu>) {
        let uuid = GpuUuid::parse("GPU-01").unwrap();
        let busy = (0..60).map(|n| (n != 30).then_some((n * 100 / 59) as u8));
        let gpu = GpuUsage {
            busy: busy.collect(),
            busy_percent: Some(50),
            samples: 400,
            ..GpuUsage::new(uuid.clone())
        };
        let usage = Usage {
            began: 1_700_000_000,
            step_ms: 250,
            clients: [vec![1; 20], vec![4; 30], vec![0; 10]].concat(),
            gpus: vec![gpu],
        };
        let gpu = RecordGpu {
            index: 0,
            uuid,
            cpus: None,
        };
        (usage, vec![gpu])
    }

    #[test]
    fn a_chart_fits_eighty_columns_in_both_alphabets() {
        let (usage, gpus) = usage();
        assert_eq!(
            lines(&usage, &gpus, Style::Bars).join("\n"),
            "    clients     4 ▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂██████████████████████████████__________
    GPU 0    50 % _▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂▃▃▃▃▃▃▃▄▄▄▄▄▄▄ ▅▅▅▅▅▅▅▆▆▆▆▆▆▆▇▇▇▇▇▇▇████████
    time          0                                                       15 s"
        );
        for style in [Style::Bars, Style::Ascii] {
            for line in lines(&usage, &gpus, style) {
                assert!(line.chars().count() <= 80, "{line}");
                assert!(style == Style::Bars || line.is_ascii(), "{line}");
            }
        }
    }

    #[test]
    fn the_words_of_a_user_make_no_long_and_no_empty_chart() {
        let (mut usage, gpus) = usage();
        usage.clients = vec![u64::MAX; 5000];
        usage.gpus[0].busy = vec![Some(255); 5000];
        usage.step_ms = u64::MAX;
        for line in lines(&usage, &gpus, Style::Bars) {
            assert!(line.chars().count() <= 100, "{line}");
        }
        assert!(lines(&Usage::default(), &gpus, Style::Bars).is_empty());
    }

    #[test]
    fn the_locale_tells_the_alphabet() {
        for (set, style) in [
            (&[("LANG", "en_US.UTF-8")][..], Style::Bars),
            (&[("LANG", "C.utf8"), ("LC_ALL", "")], Style::Bars),
            (&[("LANG", "en_US.UTF-8"), ("LC_ALL", "C")], Style::Ascii),
            (&[("LANG", "de_DE")], Style::Ascii),
            (&[], Style::Ascii),
        ] {
            let value = |name: &str| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(Style::of(value), style, "{set:?}");
        }
    }

    #[test]
    fn times_are_short() {
        let told = [0, 15_999, 119_000, 125_000, 12_600_000].map(time);
        assert_eq!(told, ["0 s", "15 s", "119 s", "2 min", "3.5 h"]);
    }
}
