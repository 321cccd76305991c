//! See `tests/src/fuzzing.rs`, function `configuration`.
#![no_main]

#[allow(dead_code)]
#[path = "../../tests/src/fuzzing.rs"]
mod fuzzing;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::configuration(bytes));
