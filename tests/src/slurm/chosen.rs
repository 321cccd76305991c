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

/// The same of a cell of a group. What failed of a bed itself, chosen by its whole name, takes all
/// its cells.
pub fn is_chosen_in(words: &[String], group: &str, cell: &str) -> bool {
    let of_bed = format!("{group}::the_bed_");
    words.iter().any(|word| word.starts_with(&of_bed))
        || is_chosen(words, &format!("{group}::{cell}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_try_takes_what_failed_and_of_a_bed_that_failed_all_cells() {
        for (words, chosen) in [
            (&[][..], [true, true, true]),
            (&["shared"], [true, true, true]),
            (&["shared::a_job"], [true, true, false]),
            (&["--exact", "shared::a_job"], [true, false, false]),
            (&["--exact", "shared"], [false, false, false]),
            (
                &["--exact", "shared::the_bed_leaves_nothing"],
                [true, true, false],
            ),
        ] {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            let cells = [
                ("shared", "a_job"),
                ("shared", "a_job_that_ends"),
                ("shared_cgroups", "a_client"),
            ];
            let is = cells.map(|(group, cell)| is_chosen_in(&words, group, cell));
            assert_eq!(is, chosen, "{words:?}");
        }
    }
}
