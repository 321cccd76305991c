//! Figures in the output of programs.

use super::*;

fn find(pattern: &str, line: &str) -> Option<f64> {
    pattern.parse::<Metric>().unwrap().find(line)
}

#[test]
fn the_number_beside_the_match_is_the_figure() {
    for (pattern, line, figure) in [
        ("ns/day", "123.4 ns/day", 123.4),
        ("ns/day", "speed: 1,706.25 ns/day, 0.014 hours/ns", 1706.25),
        ("ns/day", "ns/day: 12", 12.0),
        ("Performance", "Performance:      123.456        0.194", 123.456),
        ("Speed=", "step 1000 Speed= 7e3.", 7000.0),
        ("[0-9.]+ it/s", "epoch 3: 8.5 it/s", 8.5),
        ("loss=([0-9.]+)", "12 loss=0.25 17", 0.25),
        ("x", "1 x 2 x 3", 3.0),
        ("rate", "rate is about 5 a second", 5.0),
    ] {
        assert_eq!(find(pattern, line), Some(figure), "'{pattern}' in '{line}'");
    }
    for (pattern, line) in [
        ("ns/day", "no figure, ns/day"),
        ("ns/day", "12 ms"),
        ("x", "x nan"),
        ("x", "x -3"),
        ("(a)?x", "3 x"),
    ] {
        assert_eq!(find(pattern, line), None, "'{pattern}' in '{line}'");
    }
    assert!("(".parse::<Metric>().is_err());
}

#[test]
fn the_unit_is_what_stands_beside_the_number() {
    let unit = |pattern: &str| pattern.parse::<Metric>().unwrap().unit().to_owned();
    let patterns = [
        "ns/day",
        "([0-9.]+) ns/day",
        "\"per_second\":([0-9.]+)",
        "speed: ([0-9]+) it/s",
        "([0-9]+)",
    ];
    assert_eq!(
        patterns.map(unit),
        ["ns/day", "ns/day", "per_second", "it/s", "([0-9]+)"]
    );
}

#[test]
fn the_last_match_counts_however_the_bytes_come() {
    let metric: Metric = "steps".parse().unwrap();
    let mut scan = Scan::default();
    for bytes in ["1 ste", "ps\r", "2 steps\n\n", "no figure\n", "\x1b[2K3 steps"] {
        scan.feed(bytes.as_bytes(), Some(&metric));
    }
    assert_eq!((scan.found, scan.last().as_str()), (Some(2.0), "no figure"));
    scan.end_line(Some(&metric));
    assert_eq!((scan.found, scan.last().as_str()), (Some(3.0), "?[2K3 steps"));
}

#[test]
fn a_line_without_end_is_not_kept() {
    let metric: Metric = "x".parse().unwrap();
    let mut scan = Scan::default();
    for _ in 0..1000 {
        scan.feed(&[0xff; 10_000], Some(&metric));
    }
    assert!(scan.line.capacity() < 4 * LONGEST, "{}", scan.line.capacity());
    scan.feed(b" 9 x\n7 x\n", Some(&metric));
    assert_eq!(scan.found, Some(7.0));
}
