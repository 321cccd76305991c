//! README and the pages of docs/: every piece of mpsd.toml on them can be read, and every verb that they name is there. What their commands do is
//! tried where they are run (`packaging/tests/packages/guide.rs` takes them from the pages).

use std::fs;
use std::path::Path;

use mpsd_core::config::Config;

/// README and the pages of docs/ itself: what lies in folders below it are facts.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = fs::read_dir(root.join("docs")).expect("docs").flatten();
    let paths = docs.map(|entry| entry.path()).chain([root.join("README.md")]);
    let pages = paths.filter(|path| path.extension().is_some_and(|end| end == "md"));
    pages
        .map(|path| {
            (
                path.display().to_string(),
                fs::read_to_string(&path).expect("a page"),
            )
        })
        .collect()
}

/// A page's blocks, each with the word behind its fence.
fn blocks(page: &str) -> impl Iterator<Item = (&str, &str)> {
    let blocks = page.split("```").skip(1).step_by(2);
    blocks.filter_map(|block| block.split_once('\n'))
}

#[test]
fn every_piece_of_a_configuration_can_be_read() {
    let mut read = 0;
    for (name, page) in pages() {
        for (_, text) in blocks(&page).filter(|(word, _)| *word == "toml") {
            Config::parse(text).unwrap_or_else(|why| panic!("{name}: {why}\n{text}"));
            read += 1;
        }
    }
    assert!(read > 0, "no piece was seen");
}

#[test]
fn every_verb_of_mpsctl_is_there() {
    let mpsctl = mpsd::cli::mpsctl::command();
    let mut named = 0;
    for (name, page) in pages() {
        // At the begin of a line or of a span.
        for span in page.split(['\n', '`']) {
            let words: Vec<&str> = span.split(' ').collect();
            let ["mpsctl", verb, rest @ ..] = &words[..] else {
                continue;
            };
            let found = mpsctl.find_subcommand(verb);
            let found = found.unwrap_or_else(|| panic!("{name}: '{span}': there is no such verb"));
            let below = rest.first().filter(|_| found.has_subcommands());
            let is_there = below.is_none_or(|below| found.find_subcommand(below).is_some());
            assert!(is_there, "{name}: '{span}': there is no such verb");
            named += 1;
        }
    }
    assert!(named > 15, "only {named} verbs were seen");
}
