//! The fuzzers' corpus. `fuzz/` runs the same functions under libFuzzer, which makes its own
//! mutations.

use std::fs;
use std::path::Path;
use tests::fuzzing::TARGETS;

const PIECES: [&str; 8] = ["=", ",", "\0", "\x1b[31m", LARGE, "..", "/", "\n"];
const LARGE: &str = "9999999999999999999999";

#[test]
fn the_corpus_and_damaged_entries_break_nothing() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for (name, run) in TARGETS {
        let entries = fs::read_dir(corpus.join(name)).expect("corpus").flatten();
        let entries = entries.map(|entry| fs::read(entry.path()).expect("entry"));
        let entries: Vec<_> = entries.collect();
        assert!(!entries.is_empty(), "no corpus for {name}");
        for entry in entries {
            run(&entry);
            // Some forty places of each entry are enough: long entries repeat themselves.
            for at in (0..=entry.len()).step_by(1 + entry.len() / 40) {
                let (before, after) = entry.split_at(at);
                run(before);
                run(&[before, after.get(1..).unwrap_or_default()].concat());
                for piece in PIECES {
                    run(&[before, piece.as_bytes(), after].concat());
                }
            }
        }
    }
}
