//! The words of a command line that is too long for one.

use mpsd_core::failure::Undetermined;
use mpsd_core::{Failure, Refusal};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStringExt as _;

/// As the first word, it stands for more words on standard input.
const ON_INPUT: &str = "@-";
/// Bytes.
const MOST: u64 = 16 << 20;

/// Linux takes no word above 128 KiB (`MAX_ARG_STRLEN`), and a job's vnodes can be longer. So if
/// the first word is `@-`, the words on standard input follow this program's options, each ended by
/// NUL.
///
/// # Errors
/// A refusal of too many words; undetermined when standard input cannot be read.
pub fn words() -> Result<Vec<OsString>, Failure> {
    read(std::env::args_os().collect(), std::io::stdin())
}

fn read(mut words: Vec<OsString>, input: impl Read) -> Result<Vec<OsString>, Failure> {
    if words.get(1).is_none_or(|word| word != ON_INPUT) {
        return Ok(words);
    }
    words.remove(1);
    let mut bytes = Vec::new();
    let unread = |error: std::io::Error| Undetermined::new("standard input", error.to_string());
    input
        .take(MOST + 1)
        .read_to_end(&mut bytes)
        .map_err(unread)?;
    if bytes.len() as u64 > MOST {
        let (why, allowed) = ("the job's attributes are too long", MOST >> 20);
        return Err(Refusal::new("standard input", why, format!("{allowed} MiB")).into());
    }
    let more = bytes.split_inclusive(|byte| *byte == 0).map(|word| {
        let word = word.strip_suffix(&[0]).unwrap_or(word);
        OsString::from_vec(word.to_vec())
    });
    let end = words.iter().position(|word| word == OsStr::new("--"));
    let end = end.unwrap_or(words.len());
    words.splice(end..end, more);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(words: &[&str], input: &[u8]) -> Result<Vec<OsString>, Failure> {
        read(words.iter().map(OsString::from).collect(), input)
    }

    #[test]
    fn words_on_standard_input_are_before_the_positional_ones_and_not_too_many() {
        let long = format!("--vnodes={}", "(n:ncpus=1)+".repeat(40_000));
        let input = format!("--account=a b\n\0{long}\0");
        let read = given(&["p", "@-", "--x", "--", "1.s"], input.as_bytes()).unwrap();
        assert_eq!(read, ["p", "--x", "--account=a b\n", &long, "--", "1.s"]);
        let read = given(&["p", "@-", "pbs"], b"--resource=\0").unwrap();
        assert_eq!(read, ["p", "pbs", "--resource="]);
        // Only the first word asks for them.
        let read = given(&["p", "--x", "@-"], b"--y\0").unwrap();
        assert_eq!(read, ["p", "--x", "@-"]);
        let refused = given(&["p", "@-"], &vec![b'a'; (16 << 20) + 1]).unwrap_err();
        assert_eq!(refused.exit_code(), 1, "{refused}");
        assert!(refused.to_string().contains("allowed: 16 MiB"), "{refused}");
    }
}
