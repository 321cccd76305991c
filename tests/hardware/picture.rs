//! Pictures of a result, as SVG: bars of milliseconds, to compare times or to show the steps of one time.

use std::fmt::Write as _;

/// A bar from one time to another, milliseconds, with the words before and after it.
pub struct Bar {
    pub name: String,
    pub from: f64,
    pub to: f64,
    pub said: String,
    /// Bars of one kind have one color.
    pub kind: usize,
}

/// Okabe and Ito's colors, which color-blind people can tell apart.
const COLORS: [&str; 6] = ["#6e6e6e", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9"];
const WIDTH: f64 = 780.0;
/// The size of letters on a page that telephones show, and in a picture with a long list.
pub const LARGE: f64 = 22.0;
pub const SMALL: f64 = 11.0;
/// The mean letter's width, as a part of its height.
const LETTER: f64 = 0.56;
/// Beside a bar.
const GAP: f64 = 6.0;
/// Letters behind a bar.
const WORDS: f64 = 9.0;

/// Draws them with letters of this size.
pub fn bars(title: &str, bars: &[Bar], letters: f64) -> String {
    let most = bars.iter().map(|bar| bar.to).fold(1.0, f64::max);
    let longest = bars.iter().map(|bar| bar.name.chars().count()).max();
    let names = longest.unwrap_or(0) as f64 * letters * LETTER + 2.0 * GAP;
    let room = WIDTH - names - WORDS * letters * LETTER - GAP;
    let at = |time: f64| names + time / most * room;
    let (line, top) = (letters * 1.6, letters * 3.0);
    let (width, height) = (WIDTH, top + line * (bars.len() as f64 + 0.5));
    let mut svg = format!(
        "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" xmlns=\"http://www.w3.org/2000/svg\" \
         font-family=\"sans-serif\" font-size=\"{letters}\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    let _ = writeln!(
        svg,
        "<text x=\"8\" y=\"{:.1}\" font-size=\"{:.1}\">{}</text>",
        letters * 1.8,
        letters * 1.2,
        escaped(title)
    );
    for (number, bar) in bars.iter().enumerate() {
        let y = top + line * number as f64;
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
    fn a_bar_is_as_long_as_its_part_of_the_longest() {
        let bar = |from, to| Bar {
            name: "a < b".to_owned(),
            from,
            to,
            said: String::new(),
            kind: 1,
        };
        let svg = bars("times", &[bar(0.0, 200.0), bar(50.0, 150.0)], 10.0);
        // 780, less 5 letters and two gaps before the bars, and 9 letters and a gap behind them.
        assert!(
            svg.contains("<rect x=\"40.0\" y=\"32.0\" width=\"683.6\""),
            "{svg}"
        );
        assert!(
            svg.contains("<rect x=\"210.9\" y=\"48.0\" width=\"341.8\""),
            "{svg}"
        );
        assert!(svg.contains("a &lt; b"));
    }
}
