//! Pictures as SVG: bars with a name before each and its figure behind it. So they need no axis and
//! no legend. They are transparent, and their letters follow the page's light or dark colors.

use super::outcome::{Outcome, figure};
use std::fmt::Write as _;

/// A bar from one value to another.
#[derive(Debug)]
pub struct Bar {
    /// The words before it.
    pub name: String,
    /// Where it begins.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
    /// The words behind it.
    pub said: String,
    /// Bars of one kind have one color: [`WITHOUT`], [`WITH`], or another.
    pub kind: usize,
    /// It is the first of a group.
    pub begins: bool,
}

/// The kind of a bar without MPS, in every picture.
pub const WITHOUT: usize = 0;
/// The kind of a bar with MPS, in every picture.
pub const WITH: usize = 1;
/// Okabe and Ito's colors, which color-blind people can tell apart, on white and on black.
const COLORS: [&str; 6] = [
    "#8c8c8c", "#0a84c6", "#d55e00", "#009e73", "#cc79a7", "#56b4e9",
];
const WIDTH: f64 = 780.0;
/// The size of letters on a page that telephones show.
pub const LARGE: f64 = 22.0;
/// The size of letters in a picture with a long list.
pub const SMALL: f64 = 11.0;
/// The mean letter's width, as a part of its height.
const LETTER: f64 = 0.56;
/// Beside a bar.
const GAP: f64 = 6.0;
/// Letters behind a bar.
const WORDS: f64 = 9.0;
/// Before a group, in lines.
const APART: f64 = 0.5;

/// The throughput of each row, in groups of as many clients.
pub fn svg(outcome: &Outcome, title: &str) -> String {
    let mut all = Vec::new();
    for count in outcome.counts() {
        let mut begins = true;
        for label in outcome.labels() {
            let row = outcome.row(count, &label);
            let bar = row.and_then(|row| Some((row, row.throughput?)));
            all.extend(bar.map(|(row, throughput)| Bar {
                name: format!("{count}: {label}"),
                from: 0.0,
                to: throughput,
                said: figure(throughput),
                kind: if row.mps { WITH } else { WITHOUT },
                begins: std::mem::take(&mut begins),
            }));
        }
    }
    let about = format!("clients at once, and {} of all together", outcome.unit);
    bars(&[title, &about], &all, LARGE)
}

/// Draws them below these lines, with letters of this size.
pub fn bars(titles: &[&str], bars: &[Bar], letters: f64) -> String {
    let most = bars.iter().map(|bar| bar.to);
    let most = most.fold(f64::MIN_POSITIVE, f64::max);
    let longest = bars.iter().map(|bar| bar.name.chars().count()).max();
    let names = longest.unwrap_or(0) as f64 * letters * LETTER + 2.0 * GAP;
    let room = WIDTH - names - WORDS * letters * LETTER - GAP;
    let at = |value: f64| names + value / most * room;
    let line = letters * 1.6;
    let groups = bars.iter().skip(1).filter(|bar| bar.begins).count();
    let lines = (titles.len() + bars.len()) as f64 + groups as f64 * APART + 1.0;
    let height = (line * lines).ceil();
    let mut svg = format!(
        "<svg width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" xmlns=\"http://www.w3.org/2000/svg\" \
         font-family=\"sans-serif\" font-size=\"{letters}\">\n\
         <style>text{{fill:#24292f}}@media (prefers-color-scheme:dark){{text{{fill:#e6edf3}}}}</style>\n"
    );
    for (number, title) in titles.iter().enumerate() {
        let y = line * number as f64 + letters * 1.3;
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
        let (from, to) = (at(bar.from), at(bar.to));
        let color = COLORS[bar.kind % COLORS.len()];
        let text = y + letters * 1.1;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{text:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{color}\"/>\
             <text x=\"{:.1}\" y=\"{text:.1}\">{}</text>",
            names - GAP,
            escaped(&bar.name),
            y + 2.0,
            (to - from).max(1.0),
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
        let bar = |from, to, begins| Bar {
            name: "a < b".to_owned(),
            from,
            to,
            said: String::new(),
            kind: WITH,
            begins,
        };
        let drawn = bars(
            &["times"],
            &[bar(0.0, 200.0, true), bar(50.0, 150.0, true)],
            10.0,
        );
        // 780, less 5 letters and two gaps before the bars, and 9 letters and a gap behind them.
        assert!(
            drawn.contains("<rect x=\"40.0\" y=\"26.0\" width=\"683.6\""),
            "{drawn}"
        );
        assert!(
            drawn.contains("<rect x=\"210.9\" y=\"50.0\" width=\"341.8\""),
            "{drawn}"
        );
        assert!(drawn.contains("a &lt; b") && drawn.contains("prefers-color-scheme:dark"));
        let height = drawn
            .split("height=\"")
            .nth(1)
            .and_then(|rest| rest.split('"').next());
        assert_eq!(height, Some("72"), "the last bar ends at 62");
    }
}
