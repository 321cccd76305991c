//! The plot, as SVG: throughput over the number of clients, a line for each column of the table.

use super::outcome::{Outcome, figure};
use plotters::prelude::*;

const SIZE: (u32, u32) = (720, 480);
/// Large enough to be read on a page 360 pixels wide.
const FONT: (&str, i32) = ("sans-serif", 26);
/// Okabe and Ito's line colours, which color-blind people can tell apart.
const COLOURS: [RGBColor; 6] = [
    RGBColor(110, 110, 110),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
];

/// The drawing; `title` stands above it.
///
/// # Errors
/// One line, when the library cannot draw it.
pub fn svg(outcome: &Outcome, title: &str) -> Result<String, String> {
    let mut text = String::new();
    draw(outcome, title, &mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

fn draw(outcome: &Outcome, title: &str, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let counts = outcome.counts();
    let most = outcome.highest(|_| true);
    let last = counts.len().saturating_sub(1).max(1) as f64;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, FONT)
        .margin(12)
        .x_label_area_size(70)
        .y_label_area_size(120)
        .build_cartesian_2d(-0.1..last + 0.1, 0.0..most.max(f64::MIN_POSITIVE) * 1.1)?;
    let places: Vec<f64> = (0..counts.len()).map(|place| place as f64).collect();
    chart
        .configure_mesh()
        .disable_x_mesh()
        .label_style(FONT)
        .axis_desc_style(FONT)
        .x_labels(counts.len().max(2) * 2 - 1)
        .x_label_formatter(&|x| {
            let mut both = places.iter().zip(&counts);
            let whole = both.find(|(place, _)| (*place - x).abs() < 0.01);
            whole.map_or_else(String::new, |(_, clients)| clients.to_string())
        })
        .max_light_lines(1)
        .y_label_formatter(&|y| figure(*y))
        .x_desc("clients at once")
        .y_desc(format!("{}, all together", outcome.unit))
        .draw()?;
    for (label, colour) in outcome.labels().into_iter().zip(COLOURS.into_iter().cycle()) {
        let points: Vec<(f64, f64)> = counts
            .iter()
            .zip(&places)
            .filter_map(|(clients, place)| Some((*place, outcome.throughput(*clients, &label)?)))
            .collect();
        chart
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(3)))?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3)));
        chart.draw_series(
            points
                .into_iter()
                .map(|point| Circle::new(point, 4, colour.filled())),
        )?;
    }
    let first = counts
        .first()
        .map_or(0.0, |first| outcome.highest(|row| row.clients == *first));
    // Lines that begin high would run behind it.
    let corner = match first < most * 0.7 {
        true => SeriesLabelPosition::UpperLeft,
        false => SeriesLabelPosition::MiddleLeft,
    };
    chart
        .configure_series_labels()
        .position(corner)
        .label_font(FONT)
        .border_style(RGBColor(180, 180, 180))
        .background_style(WHITE)
        .draw()?;
    root.present()?;
    Ok(())
}
