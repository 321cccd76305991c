//! Pictures of a result, as SVG: bars of milliseconds, for times beside one another and for the steps of one time.

use std::fmt::Write as _;

/// A bar from one time to another, milliseconds, with its words before and behind it.
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
const NAMES: f64 = 250.0;
const BARS: f64 = 420.0;
const WORDS: f64 = 110.0;
const LINE: f64 = 18.0;
const TOP: f64 = 34.0;

pub fn bars(title: &str, bars: &[Bar]) -> String {
    let most = bars.iter().map(|bar| bar.to).fold(1.0, f64::max);
    let at = |time: f64| NAMES + time / most * BARS;
    let (width, height) = (NAMES + BARS + WORDS, TOP + LINE * (bars.len() as f64 + 0.5));
    let mut svg = format!(
        "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" xmlns=\"http://www.w3.org/2000/svg\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    let _ = writeln!(
        svg,
        "<text x=\"8\" y=\"20\" font-size=\"14\">{}</text>",
        escaped(title)
    );
    for (number, bar) in bars.iter().enumerate() {
        let y = TOP + LINE * number as f64;
        let (from, to) = (at(bar.from), at(bar.to));
        let color = COLORS[bar.kind % COLORS.len()];
        let text = y + 12.0;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{text:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{color}\"/>\
             <text x=\"{:.1}\" y=\"{text:.1}\">{}</text>",
            NAMES - 6.0,
            escaped(&bar.name),
            y + 2.0,
            (to - from).max(1.0),
            LINE - 4.0,
            to + 5.0,
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
        let svg = bars("times", &[bar(0.0, 200.0), bar(50.0, 150.0)]);
        assert!(
            svg.contains("<rect x=\"250.0\" y=\"36.0\" width=\"420.0\""),
            "{svg}"
        );
        assert!(
            svg.contains("<rect x=\"355.0\" y=\"54.0\" width=\"210.0\""),
            "{svg}"
        );
        assert!(svg.contains("a &lt; b"));
    }
}
