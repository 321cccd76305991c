//! The forms of a line.

use super::*;

#[test]
fn words_as_slurm_reads_them() {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(
        words("NodeName=n[1-2] name = gpu File=\"/dev/nvidia[0-1]\" Flags=a=b"),
        [
            pair("NodeName", "n[1-2]"),
            pair("name", "gpu"),
            pair("File", "/dev/nvidia[0-1]"),
            pair("Flags", "a=b")
        ]
    );
    assert!(words("no words").is_empty());
}

#[test]
fn a_line_that_goes_on_counts_from_its_beginning() {
    let text = "A=1 # B=2\n\nC=3 \\\n D=4\nE=5";
    let lines: Vec<_> = joined(text)
        .into_iter()
        .filter(|(_, line)| !line.is_empty())
        .collect();
    assert_eq!(
        lines,
        [
            (1, "A=1".to_owned()),
            (3, "C=3  D=4".to_owned()),
            (5, "E=5".to_owned())
        ]
    );
    assert_eq!(included(" Include  more.conf "), Some("more.conf"));
    assert_eq!(included("Included=x"), None);
}
