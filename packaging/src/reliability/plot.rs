//! The pages' plots, drawn from recorded runs: what processes that share a GPU get done together, and what those on several do.

use std::fmt::Write as _;

/// Names of the bars, and the bars of each group behind its number.
pub type Bars = (Vec<&'static str>, Vec<(u32, Vec<u32>)>);

/// A plot of bars in groups.
pub struct Plot {
    /// Its file in the repository.
    pub file: &'static str,
    /// What a group is named by, one of them and several.
    groups: [&'static str; 2],
}

/// Processes on one GPU.
pub const THROUGHPUT: Plot = Plot {
    file: "docs/throughput.svg",
    groups: ["process", "processes"],
};
/// Processes on several GPUs.
pub const SEVERAL: Plot = Plot {
    file: "docs/several.svg",
    groups: ["GPU", "GPUs"],
};
const COLOURS: [&str; 3] = ["#8c8c8c", "#4a90c2", "#1b5e20"];
/// Room for the title above the bars and for the names below them, and the highest bar, in units of the drawing.
const TOP: f64 = 64.0;
const HEIGHT: f64 = 200.0;
const BAR: f64 = 46.0;
const GAP: f64 = 26.0;

impl Plot {
    /// The drawing: a group of bars for each row, named by its number; `names` are those of the bars.
    pub fn svg(&self, title: &str, names: &[&str], rows: &[(u32, Vec<u32>)]) -> String {
        let highest = rows
            .iter()
            .flat_map(|(_, values)| values)
            .max()
            .copied()
            .unwrap_or(1);
        let bars: usize = rows.iter().map(|(_, values)| values.len()).sum();
        let width = GAP + bars as f64 * BAR + rows.len() as f64 * GAP;
        let base = TOP + HEIGHT;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" font-family=\"sans-serif\" \
         font-size=\"12\" text-anchor=\"middle\">\n<title>{title}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{GAP}\" y=\"20\" text-anchor=\"start\" font-size=\"14\">{title}</text>\n",
            height = base + 28.0
        );
        let mut x = GAP;
        for (name, colour) in names.iter().zip(COLOURS) {
            let _ = write!(
                text,
                "<rect x=\"{x}\" y=\"30\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\n\
             <text x=\"{at}\" y=\"41\" text-anchor=\"start\">{name}</text>\n",
                at = x + 17.0
            );
            x += 40.0 + 7.0 * name.len() as f64;
        }
        let mut x = GAP;
        for (processes, values) in rows {
            for (value, colour) in values.iter().zip(COLOURS) {
                let high = HEIGHT * f64::from(*value) / f64::from(highest) * 0.94;
                let _ = write!(
                    text,
                    "<rect x=\"{x}\" y=\"{y:.1}\" width=\"{wide}\" height=\"{high:.1}\" fill=\"{colour}\"/>\n\
                 <text x=\"{middle}\" y=\"{above:.1}\">{value}</text>\n",
                    y = base - high,
                    wide = BAR - 4.0,
                    middle = x + BAR / 2.0 - 2.0,
                    above = base - high - 4.0
                );
                x += BAR;
            }
            let middle = x - values.len() as f64 * BAR / 2.0;
            let of = self.groups[usize::from(*processes != 1)];
            let _ = writeln!(
                text,
                "<text x=\"{middle}\" y=\"{}\">{processes} {of}</text>",
                base + 18.0
            );
            x += GAP;
        }
        text + "</svg>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_bar_is_the_greatest_number() {
        let text = THROUGHPUT.svg(
            "a title",
            &["without", "with"],
            &[(1, vec![10, 20]), (2, vec![40])],
        );
        let heights: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("height=\"") && line.contains("y=\"") && !line.contains("y=\"30\""))
            .filter_map(|line| line.rsplit("height=\"").next()?.split('"').next())
            .filter(|height| !height.ends_with('%'))
            .collect();
        assert_eq!(heights, ["47.0", "94.0", "188.0"], "{text}");
        assert!(text.contains(">1 process<") && text.contains(">2 processes<"));
    }
}
