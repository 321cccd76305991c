//! What the guide says that happens, and the test that shows it: README and the pages of docs/. Every paragraph, point and row of a table is in
//! `claims.toml`, or names its source itself.

use std::collections::{BTreeMap, BTreeSet};

use crate::guide::{pages, without_blocks};
use crate::sources::{root, text};
use crate::threats::tests_of;

#[derive(serde::Deserialize)]
struct Claims {
    /// What begins a paragraph that claims nothing, by page.
    #[serde(rename = "no-claim")]
    none: BTreeMap<String, BTreeSet<String>>,
    /// By page: words of it, however its lines are broken, and `FILE::TEST`.
    #[serde(flatten)]
    of: BTreeMap<String, BTreeMap<String, String>>,
}

fn claims() -> Claims {
    toml::from_str(&text("tests/suite/claims.toml")).expect("claims.toml")
}

/// Why a claim stands on nothing.
fn baseless(paragraphs: &[String], words: &str, test: &str) -> Option<String> {
    let (file, name) = test.rsplit_once("::").expect("FILE::TEST");
    if !paragraphs.iter().any(|text| text.contains(words)) {
        return Some(format!("it no longer says '{words}'"));
    }
    if !root().join(file).exists() {
        return Some(format!("'{words}': there is no '{file}'"));
    }
    let tests = tests_of("", &text(file));
    let there = tests.iter().any(|one| one.rsplit("::").next() == Some(name));
    (!there).then(|| format!("'{words}': '{file}' has no test '{name}'"))
}

/// Pages that say at their top where all of it is from: others' words, not what this suite does.
const FROM_ELSEWHERE: [&str; 2] = ["docs/compared.md", "docs/newer-drivers.md"];

/// The page's paragraphs, points and rows, each on one line, without code, headings and what is written from tables and recorded runs, which
/// have tests of their own.
fn paragraphs(page: &str) -> Vec<String> {
    let outside = without_blocks(page);
    let mut found = vec![String::new()];
    let (mut generated, mut head) = (false, true);
    for line in outside.lines() {
        match line {
            _ if line.starts_with("<!-- end") => generated = false,
            _ if generated => {}
            _ if line.starts_with("<!-- ") => generated = true,
            _ if line.starts_with('#') || line.starts_with("![") || line.is_empty() => {
                found.push(String::new())
            }
            _ if line.starts_with("|--") || line.starts_with("| |") => {}
            _ => {
                if line.starts_with("- ") || line.starts_with('|') {
                    found.push(String::new());
                }
                let last = found.last_mut().expect("never empty");
                *last = format!("{last} {}", line.trim()).trim_start().to_owned();
            }
        }
        // The head of a table says nothing by itself.
        let is_row = line.starts_with('|');
        if is_row && head {
            found.pop();
            found.push(String::new());
        }
        head = !is_row;
    }
    found.retain(|text| !text.is_empty());
    found
}

/// Whether a paragraph says by itself where it is from.
fn names_its_source(paragraph: &str) -> bool {
    ["facts/", "tests/", "RECORDED.md"]
        .iter()
        .any(|word| paragraph.contains(word))
}

#[test]
fn every_claim_of_the_guide_has_its_test() {
    let claims = claims().of;
    let mut wrong = Vec::new();
    for (page, claims) in &claims {
        let paragraphs = paragraphs(&text(page));
        let found = claims
            .iter()
            .filter_map(|(words, test)| baseless(&paragraphs, words, test));
        wrong.extend(found.map(|why| format!("{page}: {why}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(claims.values().map(BTreeMap::len).sum::<usize>() > 150);
}

#[test]
fn every_paragraph_of_the_guide_has_a_test_a_source_or_no_claim() {
    let claims = claims();
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        if FROM_ELSEWHERE.contains(&page.as_str()) {
            continue;
        }
        let paragraphs = paragraphs(&text);
        let of: Vec<&String> = claims
            .of
            .get(&page)
            .into_iter()
            .flat_map(BTreeMap::keys)
            .collect();
        let none: Vec<&String> = claims.none.get(&page).into_iter().flatten().collect();
        let bare = paragraphs.iter().filter(|paragraph| {
            let claimed = of.iter().any(|words| paragraph.contains(*words));
            let excused = none.iter().any(|words| paragraph.starts_with(*words));
            !claimed && !excused && !names_its_source(paragraph)
        });
        wrong.extend(bare.map(|text| format!("{page}: no test is named: {text}")));
        let unused = none
            .iter()
            .filter(|words| !paragraphs.iter().any(|text| text.starts_with(**words)));
        wrong.extend(unused.map(|words| format!("{page}: no paragraph begins with: {words}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_guide_is_as_quick_as_it_was_measured() {
    #[derive(serde::Deserialize)]
    struct Measured {
        system: Vec<System>,
    }
    #[derive(serde::Deserialize)]
    struct System {
        last: String,
        ours_s: f64,
        package_manager_s: f64,
    }
    let file = "packaging/tests/packages/results/2026-11-22-stopwatch.toml";
    let measured: Measured = toml::from_str(&text(file)).expect(file);
    assert_eq!(measured.system.len(), 3);
    for system in measured.system {
        assert_eq!(system.last, "mpsctl selftest");
        assert!(system.ours_s <= 2.0 && system.ours_s + system.package_manager_s < 10.0);
    }
}

#[test]
fn paragraphs_points_and_rows_are_seen_and_heads_code_and_figures_are_not() {
    let page = "# Head\nOne\nand two.\n\n- point\n  goes on\n| a | b |\n|---|---|\n| c | d |\n\n```sh\ncode\n```\n<!-- figures: x -->\n1\n<!-- end of figures -->\nLast.\n";
    assert_eq!(
        paragraphs(page),
        ["One and two.", "- point goes on", "| c | d |", "Last."]
    );
    assert!(!names_its_source("It is so.") && names_its_source("It is so (`tests/suite/fleet.rs`)."));
}
