//! The picture on the screen.

use super::*;

fn rows(text: &str) -> usize {
    text.matches("\r\n").count() + 1
}

#[test]
fn a_picture_has_no_more_rows_than_the_terminal() {
    let lines: Vec<String> = (0..10).map(|n| format!("line {n}")).collect();
    for height in 3..=20 {
        let text = frame(&lines, height);
        assert!(rows(&text) <= height, "{height}: {text:?}");
        assert_eq!(text.contains("lines more"), height <= 10, "{height}");
    }
    assert!(frame(&lines, 5).contains("... 7 lines more"));
}

#[test]
fn nothing_of_the_picture_before_is_left() {
    let text = frame(&["a".to_owned()], 24);
    assert!(
        text.starts_with(HOME) && text.ends_with(END_OF_SCREEN),
        "{text:?}"
    );
    assert_eq!(text.matches("\x1b[K").count(), 2);
}
