//! Shares, and what is measured only once.

use super::*;

#[test]
fn shares_are_read_and_divided_as_the_prologue_divides() {
    let of = |text: &str, clients| {
        let share: Share = text.parse().unwrap();
        share
            .of(clients)
            .map(|percent| percent.to_string())
            .unwrap_or_default()
    };
    assert_eq!(of("none", 8), "");
    assert_eq!([of("auto", 1), of("auto", 2), of("auto", 8)], ["", "", "25"]);
    assert_eq!(
        [of("100/n", 1), of("100/N", 3), of("100/n", 16)],
        ["", "33.3", "6.2"]
    );
    assert_eq!([of("25", 1), of("100", 4), of("300/n", 1000)], ["25", "", "1"]);
    for wrong in ["", "all", "0", "101", "0/n", "x/n", "10001/n", "1/m"] {
        assert!(
            wrong
                .parse::<Share>()
                .unwrap_err()
                .to_string()
                .contains("allowed: none, auto"),
            "{wrong}"
        );
    }
}

#[test]
fn a_share_that_limits_nothing_is_not_measured_twice() {
    let (none, auto) = (Way::Mps(Share::None), Way::Mps(Share::Auto));
    let of = |clients| Configuration { clients, way: auto };
    let both = [Way::Without, none, auto];
    assert_eq!(of(2).measured_as(&both, 1).way, none);
    assert_eq!(of(3).measured_as(&both, 1).way, auto);
    assert_eq!(of(4).measured_as(&both, 2).way, none, "two on each GPU");
    assert_eq!(
        of(2).measured_as(&[auto], 1).way,
        auto,
        "nobody measures it otherwise"
    );
}
