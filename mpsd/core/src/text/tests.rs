use super::*;

#[test]
fn escapes_do_not_reach_the_terminal() {
    assert_eq!(one_line("a\x1b[2Jb\nc\u{202e}d", 80), "a?[2Jb?c?d");
    assert_eq!(one_line("abcdef", 3), "abc...");
}

#[test]
fn the_nearest_word_is_near() {
    let known = ["threads", "mem", "on", "off", "per-node", "per-gpu"];
    for (word, meant) in [
        ("thread", Some("threads")),
        ("THRAEDS", Some("threads")),
        ("pergpu", Some("per-gpu")),
        ("pre-node", Some("per-node")),
        ("memory", None),
        ("maybe", None),
        ("x", None),
        ("", None),
        (&"threads".repeat(10), None),
    ] {
        assert_eq!(nearest(word, known), meant, "{word}");
    }
}
