//! The fuzzers' corpus and mutations of it. `fuzz/` runs the same functions under libFuzzer.

use std::fs;
use std::path::Path;
use tests::fuzzing::TARGETS;

/// Mutations of each entry.
const MUTATIONS: u64 = 400;
/// Text that parsers stumble over.
const PIECES: [&str; 10] = [
    "=",
    ",",
    ":",
    "\0",
    "\x1b[31m",
    "9999999999999999999999",
    "..",
    "/",
    "\n",
    "%",
];

/// Random numbers that are the same in every run (splitmix64).
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (mixed ^ (mixed >> 31)) as usize
}

/// One to four small damages: a byte changed or removed, the end cut off, the begin doubled, or a piece put in.
fn damaged(entry: &[u8], state: &mut u64) -> Vec<u8> {
    let mut bytes = entry.to_vec();
    for _ in 0..=random(state) % 4 {
        let at = random(state) % (bytes.len() + 1);
        match random(state) % 5 {
            0 if at < bytes.len() => bytes[at] = random(state) as u8,
            1 => bytes.truncate(at),
            2 => bytes = [&bytes[..at], &bytes].concat(),
            3 if at < bytes.len() => drop(bytes.remove(at)),
            _ => {
                let piece = PIECES[random(state) % PIECES.len()].as_bytes();
                bytes = [&bytes[..at], piece, &bytes[at..]].concat();
            }
        }
    }
    bytes
}

#[test]
fn the_corpus_and_its_mutations_break_nothing() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let mut state = 1;
    for (name, run) in TARGETS {
        let entries = fs::read_dir(corpus.join(name)).expect("corpus").flatten();
        let mut count = 0;
        for entry in entries {
            let bytes = fs::read(entry.path()).expect("entry");
            run(&bytes);
            (0..MUTATIONS).for_each(|_| run(&damaged(&bytes, &mut state)));
            count += 1;
        }
        assert!(count > 0, "no corpus for {name}");
    }
}
