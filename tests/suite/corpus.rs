//! The fuzzers' corpus replayed, and mutations of it; `fuzz/` runs the same functions under libFuzzer.

use std::fs;
use std::path::Path;
use tests::fuzzing::TARGETS;

/// Mutations of each entry.
const MUTATIONS: u64 = 400;

/// Random bytes that are the same in every run (splitmix64).
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (mixed ^ (mixed >> 31)) as usize
}

/// One to four small damages: a byte changed, cut, doubled, or text that parsers stumble over put in.
fn damaged(entry: &[u8], state: &mut u64) -> Vec<u8> {
    const BITS: [&[u8]; 12] = [
        b"=",
        b",",
        b":",
        b"\0",
        b"\xff",
        b"\x1b[31m",
        b"9999999999999999999999",
        b"..",
        b"/",
        b"\n",
        b"GPU-",
        b"%",
    ];
    let mut bytes = entry.to_vec();
    for _ in 0..=random(state) % 4 {
        let at = random(state) % (bytes.len() + 1);
        match random(state) % 5 {
            0 if at < bytes.len() => bytes[at] = random(state) as u8,
            1 => bytes.truncate(at),
            2 => bytes = [&bytes[..at], &bytes].concat(),
            3 if at < bytes.len() => drop(bytes.remove(at)),
            _ => {
                let bit = BITS[random(state) % BITS.len()];
                bytes = [&bytes[..at], bit, &bytes[at..]].concat();
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
        let entries: Vec<_> = fs::read_dir(corpus.join(name))
            .expect("corpus")
            .flatten()
            .collect();
        assert!(!entries.is_empty(), "no corpus for {name}");
        for entry in &entries {
            let bytes = fs::read(entry.path()).expect("entry");
            run(&bytes);
            for _ in 0..MUTATIONS {
                run(&damaged(&bytes, &mut state));
            }
        }
        println!(
            "{name}: {} entries, {} executions",
            entries.len(),
            entries.len() as u64 * (MUTATIONS + 1)
        );
    }
}
