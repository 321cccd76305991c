//! See `tests/src/fuzzing.rs`, function `daemon_answers`.
#![no_main]

#[allow(dead_code)]
#[path = "../../tests/src/fuzzing.rs"]
mod fuzzing;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::daemon_answers(bytes));
