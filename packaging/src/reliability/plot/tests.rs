use super::*;

#[test]
fn the_highest_bar_is_the_greatest_number() {
    let text = THROUGHPUT.svg(
        "a title",
        &["without", "with"],
        &[(1, vec![10, 20]), (2, vec![40])],
    );
    let heights: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("height=\"") && line.contains("y=\"") && !line.contains("y=\"30\""))
        .filter_map(|line| line.rsplit("height=\"").next()?.split('"').next())
        .filter(|height| !height.ends_with('%'))
        .collect();
    assert_eq!(heights, ["47.0", "94.0", "188.0"], "{text}");
    assert!(text.contains(">1 process<") && text.contains(">2 processes<"));
}
