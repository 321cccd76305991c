//! The plots beside the recorded sweeps are drawn from them.

use std::fs;
use std::path::Path;

use mpsd::cli::sweep::{outcome::Outcome, plot};

#[test]
fn each_recorded_plot_shows_its_own_figures() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("hardware/results");
    let mut seen = 0;
    for entry in fs::read_dir(&folder).expect("results").flatten() {
        let file = entry.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        // That of several GPUs is no sweep: xtask draws its plot, and holds the pages to it.
        if !name.ends_with(".json") || name.ends_with("-several.json") {
            continue;
        }
        let text = fs::read_to_string(&file).expect("sweep");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let mut outcome: Outcome = serde_json::from_value(value.clone()).expect("a sweep");
        // Before it was said, 48 was meant.
        outcome.most_clients.get_or_insert(48);
        let title = value["title"].as_str().expect("title");
        let drawn = plot::svg(&outcome, title).expect("plot");
        let beside = fs::read_to_string(file.with_extension("svg")).expect("plot beside it");
        assert!(drawn == beside, "'{}' has another plot", file.display());
        assert_eq!(
            value["advice"].as_str(),
            Some(outcome.advice().as_str()),
            "{}",
            file.display()
        );
        seen += 1;
    }
    assert!(seen >= 2, "{seen} sweeps");
}
