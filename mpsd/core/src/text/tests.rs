use super::*;

#[test]
fn escapes_do_not_reach_the_terminal() {
    assert_eq!(one_line("a\x1b[2Jb\nc\u{202e}d", 80), "a?[2Jb?c?d");
    assert_eq!(one_line("abcdef", 3), "abc...");
}
