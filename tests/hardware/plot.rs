//! Pictures as SVG: bars with a name before each and its figure behind it. So they need no axis and
//! no legend. They are transparent, and their letters follow the page's light or dark colors.

use std::fmt::Write as _;

use serde_json::Value;

#[derive(Debug)]
pub struct Bar {
    /// The words before it.
    pub name: String,
    pub to: f64,
    /// The words behind it.
    pub said: String,
    /// Bars of one kind have one color: [`WITHOUT`], [`WITH`], or another.
    pub kind: usize,
    pub begins: bool,
}

pub const WITHOUT: usize = 0;
pub const WITH: usize = 1;
/// Okabe and Ito's colors, which color-blind people can tell apart, on white and on black.
const COLORS: [&str; 6] = [
    "#8c8c8c", "#0a84c6", "#d55e00", "#009e73", "#cc79a7", "#56b4e9",
];
const WIDTH: f64 = 780.0;
/// The size of letters, on a page that telephones show.
const LETTERS: f64 = 22.0;
/// The mean letter's width, as a part of its height.
const LETTER: f64 = 0.56;
const GAP: f64 = 6.0;
/// Letters behind a bar.
const WORDS: f64 = 9.0;
/// Before a group, in lines.
const APART: f64 = 0.5;

/// The throughput of each row of what `mpsctl sweep --json` told, in groups of as many clients.
pub fn svg(told: &Value) -> String {
    let mut rows: Vec<&Value> = told["rows"].as_array().into_iter().flatten().collect();
    rows.sort_by_key(|row| row["clients"].as_u64());
    let mut all: Vec<Bar> = Vec::new();
    let mut last = None;
    for row in rows {
        let (count, throughput) = (&row["clients"], row["throughput"].as_f64());
        let name = match row["threads"].as_str() {
            None => "without MPS".to_owned(),
            Some("none") => "MPS".to_owned(),
            Some(share) => format!("MPS, {share}"),
        };
        all.extend(throughput.map(|throughput| Bar {
            name: format!("{count}: {name}"),
            to: throughput,
            said: figure(throughput),
            kind: if row["mps"] == true { WITH } else { WITHOUT },
            begins: last.replace(count) != Some(count),
        }));
    }
    let [title, unit] = ["title", "unit"].map(|key| told[key].as_str().unwrap_or_default());
    let about = format!("clients at once, and {unit} of all together");
    bars(&[title, &about], &all)
}

/// As many digits as a person reads, with a comma before the last three.
fn figure(value: f64) -> String {
    let whole = value.round() as u64;
    match value {
        _ if value >= 1000.0 => format!("{},{:03}", whole / 1000, whole % 1000),
        _ if value >= 100.0 => whole.to_string(),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

pub fn bars(titles: &[&str], bars: &[Bar]) -> String {
    let most = bars.iter().map(|bar| bar.to);
    let most = most.fold(f64::MIN_POSITIVE, f64::max);
    let longest = bars.iter().map(|bar| bar.name.chars().count()).max();
    let names = longest.unwrap_or(0) as f64 * LETTERS * LETTER + 2.0 * GAP;
    let room = WIDTH - names - WORDS * LETTERS * LETTER - GAP;
    let at = |value: f64| names + value / most * room;
    let line = LETTERS * 1.6;
    let groups = bars.iter().skip(1).filter(|bar| bar.begins).count();
    let lines = (titles.len() + bars.len()) as f64 + groups as f64 * APART + 1.0;
    let height = (line * lines).ceil();
    let mut svg = format!(
        "<svg width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" xmlns=\"http://www.w3.org/2000/svg\" \
         font-family=\"sans-serif\" font-size=\"{LETTERS}\">\n\
         <style>text{{fill:#24292f}}@media (prefers-color-scheme:dark){{text{{fill:#e6edf3}}}}</style>\n"
    );
    for (number, title) in titles.iter().enumerate() {
        let y = line * number as f64 + LETTERS * 1.3;
        let weight = if number == 0 { "bold" } else { "normal" };
        let title = escaped(title);
        let _ = writeln!(
            svg,
            "<text x=\"8\" y=\"{y:.1}\" font-weight=\"{weight}\">{title}</text>"
        );
    }
    let mut y = line * (titles.len() as f64 + 0.5);
    for (number, bar) in bars.iter().enumerate() {
        if bar.begins && number > 0 {
            y += line * APART;
        }
        let to = at(bar.to);
        let color = COLORS[bar.kind % COLORS.len()];
        let text = y + LETTERS * 1.1;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{text:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{names:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{color}\"/>\
             <text x=\"{:.1}\" y=\"{text:.1}\">{}</text>",
            names - GAP,
            escaped(&bar.name),
            y + 2.0,
            (to - names).max(1.0),
            line - 4.0,
            to + GAP,
            escaped(&bar.said)
        );
        y += line;
    }
    svg + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_part_of_the_longest_and_a_group_stands_apart() {
        let bar = |to, begins| Bar {
            name: "a < b".to_owned(),
            to,
            said: String::new(),
            kind: WITH,
            begins,
        };
        let drawn = bars(&["times"], &[bar(200.0, true), bar(100.0, true)]);
        // 780, less 5 letters and two gaps before the bars, and 9 letters and a gap behind them. The
        // last bar ends at 141.
        for part in [
            "x=\"73.6\" y=\"54.8\" width=\"589.5\"",
            "x=\"73.6\" y=\"107.6\" width=\"294.8\"",
            "a &lt; b",
            "prefers-color-scheme:dark",
            "height=\"159\" viewBox",
        ] {
            assert!(drawn.contains(part), "{part}: {drawn}");
        }
    }
}
