//! Which cells are run.

/// As libtest's.
pub const EXACT: &str = "--exact";

/// Whether a name has one of the words; with [`EXACT`] among them: whether it is one.
pub fn is_chosen(words: &[String], name: &str) -> bool {
    let exact = words.iter().any(|word| word == EXACT);
    let fits = |word: &String| match exact {
        true => name == word,
        false => name.contains(word.as_str()),
    };
    words.is_empty() || words.iter().any(fits)
}

/// As [`is_chosen`]; the name of a bed's own failure chooses all cells of that bed.
pub fn is_chosen_in(words: &[String], group: &str, cell: &str) -> bool {
    let of_bed = format!("{group}::the_bed_");
    words.iter().any(|word| word.starts_with(&of_bed))
        || is_chosen(words, &format!("{group}::{cell}"))
}
