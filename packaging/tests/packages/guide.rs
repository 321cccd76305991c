//! The commands on the guide's pages.

use std::fs;
use std::path::Path;

/// The commands below a heading of a page of docs/, a line each, without the comments behind them.
#[track_caller]
pub fn commands(page: &str, heading: &str) -> Vec<String> {
    let lines = blocks(&below(page, heading), "sh").concat();
    let lines = lines.lines().map(|line| line.split(" #").next().unwrap());
    let found: Vec<String> = lines.map(|line| line.trim().to_owned()).collect();
    assert!(!found.is_empty(), "docs/{page}: none below '{heading}'");
    found
}

/// The script below a heading, which has no other.
#[track_caller]
pub fn script(page: &str, heading: &str) -> String {
    let scripts = blocks(&below(page, heading), "bash");
    let [script] = scripts.try_into().expect("one script");
    assert!(script.starts_with("#!"), "docs/{page}: {script}");
    script
}

fn below(page: &str, heading: &str) -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let text = fs::read_to_string(docs.join(page));
    let text = text.unwrap_or_else(|error| panic!("docs/{page}: {error}"));
    let parts = text.split_once(&format!("\n## {heading}\n"));
    let (_, text) = parts.unwrap_or_else(|| panic!("docs/{page} has no heading '{heading}'"));
    text.split("\n## ").next().unwrap().to_owned()
}

fn blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let rests = text.split(&fence).skip(1);
    let blocks = rests.map(|rest| rest.split("```").next().unwrap().to_owned());
    blocks.collect()
}
